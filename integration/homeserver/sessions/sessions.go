// Package sessions stores the demo host's users: their passwords, devices, access tokens and
// account data. It implements [module.Accounts].
//
// A real host has all of this already.
package sessions

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"time"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// The errors for clients.
var (
	ErrWrongPassword = fault.New(fault.Forbidden, "Invalid username or password.")
	ErrDeactivated   = errors.New("this account has been deactivated")
)

// Sessions stores users with their passwords, devices and account data. It is safe for concurrent use. Each
// method can also return [module.Unavailable].
type Sessions struct {
	db         *data.DB
	serverName string
	ended      func(mxid.UserID)
}

var (
	_ module.Accounts     = (*Sessions)(nil)
	_ module.BulkAccounts = (*Sessions)(nil)
)

// New returns the sessions of a server's users. Ended is called after sessions of a user have
// ended.
func New(db *data.DB, serverName string, ended func(mxid.UserID)) *Sessions {
	return &Sessions{db, serverName, ended}
}

// Authenticate returns the caller of a token. Errors: [module.ErrLoggedOut].
func (s *Sessions) Authenticate(ctx context.Context, token string) (Caller, error) {
	who, valid := callerOf(token, s.serverName)
	if !valid {
		return Caller{}, module.ErrLoggedOut
	}
	return who, s.Check(ctx, who)
}

// Check returns [module.ErrLoggedOut] if the caller's session has ended. A token without a session is always valid, so
// Check does not ask the database about it.
func (s *Sessions) Check(ctx context.Context, who Caller) error {
	if who.secret == "" {
		return nil
	}
	hash, found, err := data.One(ctx, s.db, data.Value[string],
		`SELECT secret_sha256 FROM devices WHERE user_id = ? AND device_id = ?`, who.User, who.Device)
	if err == nil && (!found || subtle.ConstantTimeCompare([]byte(hash), []byte(hashSecret(who.secret))) == 0) {
		err = module.ErrLoggedOut
	}
	return err
}

// LoggedIn implements [module.Accounts].
func (s *Sessions) LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error) {
	one := module.Session{User: user, Device: device}
	is := s.LoggedInMany(ctx, []module.Session{one})[one]
	return is.Value, is.Err
}

// LoggedInMany implements [module.BulkAccounts], with one query.
func (s *Sessions) LoggedInMany(ctx context.Context, sessions []module.Session) map[module.Session]module.Result[bool] {
	all := make(map[module.Session]module.Result[bool], len(sessions))
	list, err := json.Marshal(sessions)
	if err == nil {
		_, err = data.All(ctx, s.db, func(scan data.Scan) (one module.Session, err error) {
			err = scan(&one.User, &one.Device)
			all[one] = module.Result[bool]{Value: true}
			return one, err
		}, `SELECT asked.user, asked.device FROM (SELECT value ->> 'User' AS user, value ->> 'Device' AS device FROM json_each(?)) AS asked
			LEFT JOIN users ON users.user_id = asked.user LEFT JOIN devices ON devices.user_id = asked.user AND devices.device_id = asked.device
			WHERE deactivated_ts IS NULL AND (asked.device IN ('', ?) OR devices.device_id IS NOT NULL)`, string(list), defaultDevice)
	}
	for _, one := range sessions {
		if err != nil {
			all[one] = module.Result[bool]{Err: err}
		} else if _, found := all[one]; !found {
			all[one] = module.Result[bool]{}
		}
	}
	return all
}

// Devices returns a user's devices, in order.
func (s *Sessions) Devices(ctx context.Context, user mxid.UserID) (devices []string, err error) {
	return data.All(ctx, s.db, data.Value[string], `SELECT device_id FROM devices WHERE user_id = ? ORDER BY device_id`, user)
}

// account is a row of users.
type account struct {
	password      string // its hash; empty for the default password
	isDeactivated bool
}

func accountOf(ctx context.Context, from data.Source, user mxid.UserID) (account, error) {
	a, _, err := data.One(ctx, from, func(scan data.Scan) (a account, err error) { return a, scan(&a.password, &a.isDeactivated) },
		`SELECT password, deactivated_ts IS NOT NULL FROM users WHERE user_id = ?`, user)
	return a, err
}

// LogIn starts a session of a device and returns its token. The device's previous session
// ends, but the device keeps its pushers (Matrix specification, "Relationship between access
// tokens and devices" and "Soft logout"). Errors: [ErrWrongPassword], [ErrDeactivated].
func (s *Sessions) LogIn(ctx context.Context, user mxid.UserID, password, device string) (token string, err error) {
	secret := rand.Text()
	for isStored := false; !isStored; { // again, if the password changes meanwhile
		checked, err := s.checkPassword(ctx, user, password) // a hash takes too long for a transaction
		if err != nil {
			return "", err
		}
		err = s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
			now, err := accountOf(ctx, tx, user)
			if isStored = now == checked; err != nil || !isStored {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO users (user_id) VALUES (?) ON CONFLICT DO NOTHING`, user); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)`, user, device, hashSecret(secret), time.Now().UnixMilli())
			return err
		})
		if err != nil {
			return "", err
		}
	}
	s.ended(user)
	return sessionToken(Localpart(user), device, secret), nil
}

// CheckPassword checks a user's password. Errors: [ErrWrongPassword], [ErrDeactivated].
func (s *Sessions) CheckPassword(ctx context.Context, user mxid.UserID, password string) error {
	_, err := s.checkPassword(ctx, user, password)
	return err
}

// checkPassword also returns the account.
func (s *Sessions) checkPassword(ctx context.Context, user mxid.UserID, password string) (account, error) {
	a, err := accountOf(ctx, s.db, user)
	switch {
	case err != nil:
		return a, err
	case a.isDeactivated:
		return a, ErrDeactivated
	}
	return a, checkPassword(password, a.password)
}

// SetPassword changes a user's password. With [EndOthers], the same transaction ends the sessions of all devices but one:
// none keeps a session that began with the old password.
func (s *Sessions) SetPassword(ctx context.Context, user mxid.UserID, password, device string, others Others) error {
	hash, err := hashPassword(password)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO users (user_id, password) VALUES (?, ?) ON CONFLICT DO UPDATE SET password = excluded.password`, user, hash)
		if err != nil || others == KeepOthers {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM devices WHERE user_id = ? AND device_id <> ?`, user, device)
		return err
	})
	s.ended(user)
	return err
}

// Others says what a new password does with the sessions of other devices.
type Others bool

// The choices of the client.
const (
	KeepOthers Others = false
	EndOthers  Others = true
)

// End ends the session of a device.
func (s *Sessions) End(ctx context.Context, user mxid.UserID, device string) error {
	err := s.db.Exec(ctx, `DELETE FROM devices WHERE user_id = ? AND device_id = ?`, user, device)
	s.ended(user)
	return err
}

// EndAll ends all sessions of a user.
func (s *Sessions) EndAll(ctx context.Context, user mxid.UserID) error {
	err := s.db.Exec(ctx, `DELETE FROM devices WHERE user_id = ?`, user)
	s.ended(user)
	return err
}

// Deactivate ends all sessions of a user for ever, removes the user's other data, and adds the user to
// [Sessions.ToForget]. The user leaves all rooms.
func (s *Sessions) Deactivate(ctx context.Context, user mxid.UserID) error {
	err := s.db.Write(ctx, func(ctx context.Context, tx *data.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO users (user_id, deactivated_ts, to_forget) VALUES (?1, ?2, 1)
			ON CONFLICT DO UPDATE SET password = '', deactivated_ts = ?2, to_forget = 1`, user, time.Now().UnixMilli()); err != nil {
			return err
		}
		for _, statement := range []string{
			`DELETE FROM devices WHERE user_id = ?`, `DELETE FROM account_data WHERE user_id = ?`, `DELETE FROM ignored_users WHERE user_id = ?`,
			`DELETE FROM filters WHERE user_id = ?`, `DELETE FROM receipts WHERE user_id = ?`, `DELETE FROM changes WHERE user_id = ?`,
			`UPDATE members SET membership = 'leave', by_event = 1 WHERE user_id = ?`,
		} {
			if _, err := tx.ExecContext(ctx, statement, user); err != nil {
				return err
			}
		}
		return nil
	})
	s.ended(user)
	return err
}

// ToForget returns the deactivated users whom the module has not forgotten yet.
func (s *Sessions) ToForget(ctx context.Context) ([]mxid.UserID, error) {
	return data.All(ctx, s.db, data.Value[mxid.UserID], `SELECT user_id FROM users WHERE to_forget`)
}

// Forgotten removes a user from [Sessions.ToForget].
func (s *Sessions) Forgotten(ctx context.Context, user mxid.UserID) error {
	return s.db.Exec(ctx, `UPDATE users SET to_forget = 0 WHERE user_id = ?`, user)
}
