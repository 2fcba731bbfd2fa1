package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// AccountData is account data of a user. Room is empty for global data.
type AccountData struct {
	Room, Type string
	Content    json.RawMessage
}

const (
	maxAccountData = 1 << 20 // bytes of all account data of a user
	rowBytes       = 256     // that each piece of account data counts beside its content
)

// ErrTooMuchData refuses account data of a user who has too much.
var ErrTooMuchData = fault.New(fault.TooLarge, "The user has too much account data.")

// IgnoredType is the account data type of [Ignored].
const IgnoredType = "m.ignored_user_list"

// Ignored lists the users that a user ignores (Matrix specification, "Ignoring Users").
type Ignored struct {
	Users map[mxid.UserID]json.RawMessage `json:"ignored_users"`
}

// SetAccountData stores account data of a user. Errors: [ErrTooMuchData].
func (s *Sessions) SetAccountData(ctx context.Context, user mxid.UserID, one AccountData) error {
	return s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO account_data VALUES (?, ?, ?, ?)`, user, one.Room, one.Type, string(one.Content)); err != nil {
			return err
		}
		size, _, err := data.One(ctx, tx, data.Value[int], `SELECT SUM(OCTET_LENGTH(content) + ?) FROM account_data WHERE user_id = ?`, rowBytes, user)
		if err != nil {
			return err
		}
		if size > maxAccountData {
			return ErrTooMuchData
		}
		if one.Room == "" && one.Type == IgnoredType {
			return setIgnored(ctx, tx, user, one.Content)
		}
		return nil
	})
}

func setIgnored(ctx context.Context, tx *data.Tx, user mxid.UserID, content json.RawMessage) error {
	var list Ignored
	if err := json.Unmarshal(content, &list); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM ignored_users WHERE user_id = ?`, user); err != nil {
		return err
	}
	for ignored := range list.Users {
		if _, err := tx.ExecContext(ctx, `INSERT INTO ignored_users VALUES (?, ?)`, ignored, user); err != nil {
			return err
		}
	}
	return nil
}

// IgnoresSender reports whether a user ignores the sender of the event at a position.
func (s *Sessions) IgnoresSender(ctx context.Context, user mxid.UserID, position int64) (ignores bool, err error) {
	_, ignores, err = data.One(ctx, s.db, data.Value[int],
		`SELECT 1 FROM ignored_users JOIN events ON ignored = json_extract(json, '$.sender') WHERE user_id = ? AND position = ?`, user, position)
	return ignores, err
}

// AccountData returns the account data of a user, ordered by room and type.
func (s *Sessions) AccountData(ctx context.Context, user mxid.UserID) (all []AccountData, err error) {
	return data.All(ctx, s.db, func(scan data.Scan) (one AccountData, err error) {
		var content string
		err = scan(&one.Room, &one.Type, &content)
		one.Content = json.RawMessage(content)
		return one, err
	}, `SELECT room_id, type, content FROM account_data WHERE user_id = ? ORDER BY room_id, type`, user)
}

// AccountDataOf returns one content of a user's account data, empty for none.
func (s *Sessions) AccountDataOf(ctx context.Context, user mxid.UserID, room, kind string) (content string, err error) {
	content, _, err = data.One(ctx, s.db, data.Value[string],
		`SELECT content FROM account_data WHERE user_id = ? AND room_id = ? AND type = ?`, user, room, kind)
	return content, err
}

const maxFilters = 100 // of a user

// AddFilter stores a filter and returns its id, which is the same for the same content. Errors: [ErrTooMuchData].
func (s *Sessions) AddFilter(ctx context.Context, user mxid.UserID, content string) (id string, err error) {
	sum := sha256.Sum256([]byte(content))
	id = base64.RawURLEncoding.EncodeToString(sum[:12])
	return id, s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO filters VALUES (?, ?, ?)`, user, id, content); err != nil {
			return err
		}
		n, _, err := data.One(ctx, tx, data.Value[int], `SELECT COUNT(*) FROM filters WHERE user_id = ?`, user)
		if err == nil && n > maxFilters {
			err = ErrTooMuchData
		}
		return err
	})
}

// Filter returns the content of a filter.
func (s *Sessions) Filter(ctx context.Context, user mxid.UserID, id string) (content string, found bool, err error) {
	return data.One(ctx, s.db, data.Value[string], `SELECT content FROM filters WHERE user_id = ? AND filter_id = ?`, user, id)
}
