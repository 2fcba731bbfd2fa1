// Package sessions stores the demo host's users in Redis: their passwords, devices and
// access tokens. It implements [module.Accounts].
//
// A real host has all of this already.
package sessions

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// The errors for clients.
var (
	ErrWrongPassword = errors.New("invalid username or password")
	ErrDeactivated   = errors.New("this account has been deactivated")
)

// Sessions stores users with their passwords and devices. It is safe for concurrent use. Each
// method can also return [module.Unavailable].
type Sessions struct {
	*Store
	serverName string
	ended      func(mxid.UserID)
}

var (
	_ module.Accounts     = (*Sessions)(nil)
	_ module.BulkAccounts = (*Sessions)(nil)
)

// New returns the sessions of a server's users. Ended is called after sessions of a user have
// ended.
func New(store *Store, serverName string, ended func(mxid.UserID)) *Sessions {
	return &Sessions{store, serverName, ended}
}

// The fields of an account.
const (
	passwordField    = "password" // its hash; missing for the default password
	deactivatedField = "deactivated"
)

// session is a stored session.
type session struct {
	SecretHash string `json:"secret_sha256"`
	CreatedTS  int64  `json:"created_ts"` // in milliseconds since 1970
}

func (s *session) isOf(secret string) bool {
	return s != nil && subtle.ConstantTimeCompare([]byte(s.SecretHash), []byte(hashSecret(secret))) == 1
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
// Check does not ask Redis about it.
func (s *Sessions) Check(ctx context.Context, who Caller) error {
	if who.secret == "" {
		return nil
	}
	deactivated, session, err := s.load(ctx, who.User, who.Device)
	switch {
	case err != nil:
		return err
	case deactivated, !session.isOf(who.secret):
		return module.ErrLoggedOut
	}
	return nil
}

// LoggedIn implements [module.Accounts].
func (s *Sessions) LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error) {
	one := module.Session{User: user, Device: device}
	answer := s.LoggedInMany(ctx, []module.Session{one})[one]
	return answer.Value, answer.Err
}

// LoggedInMany implements [module.BulkAccounts], in one pipeline.
func (s *Sessions) LoggedInMany(ctx context.Context, sessions []module.Session) map[module.Session]module.Result[bool] {
	deactivated, devices := make([]*redis.BoolCmd, len(sessions)), make([]*redis.BoolCmd, len(sessions))
	err := s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, one := range sessions {
				deactivated[i] = pipe.HExists(ctx, s.key(accountHash, one.User), deactivatedField)
				devices[i] = pipe.HExists(ctx, s.key(devicesHash, one.User), one.Device)
			}
			return nil
		})
		return err
	})
	all := make(map[module.Session]module.Result[bool], len(sessions))
	for i, one := range sessions {
		if failed := cmp.Or(deactivated[i].Err(), devices[i].Err()); failed != nil {
			all[one] = module.Result[bool]{Err: cmp.Or(err, failed)}
			continue
		}
		present := one.Device == "" || one.Device == defaultDevice || devices[i].Val()
		all[one] = module.Result[bool]{Value: present && !deactivated[i].Val()}
	}
	return all
}

// Devices returns a user's devices that have a session.
func (s *Sessions) Devices(ctx context.Context, user mxid.UserID) (devices []string, err error) {
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		devices, err = client.HKeys(ctx, s.key(devicesHash, user)).Result()
		return err
	})
	return devices, err
}

// load returns whether a user is deactivated, and the session of a device, nil if it has none.
func (s *Sessions) load(ctx context.Context, user mxid.UserID, device string) (deactivated bool, found *session, err error) {
	var flag *redis.BoolCmd
	var field *redis.SliceCmd
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			flag = pipe.HExists(ctx, s.key(accountHash, user), deactivatedField)
			field = pipe.HMGet(ctx, s.key(devicesHash, user), device)
			return nil
		})
		return err
	})
	if err != nil {
		return false, nil, err
	}
	if text, isText := field.Val()[0].(string); isText {
		found = new(session)
		if err := json.Unmarshal([]byte(text), found); err != nil {
			return false, nil, fmt.Errorf("stored session: %w", err)
		}
	}
	return flag.Val(), found, nil
}

// startSession stores the session of a device (KEYS[2]) if the account (KEYS[1]) still has the password hash that was
// checked.
var startSession = redis.NewScript(`
local account = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
if account[2] then
	return 'deactivated'
end
if (account[1] or '') ~= ARGV[3] then
	return 'password changed'
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
return 'ok'
`)

// LogIn starts a session of a device and returns its token. The device's previous session
// ends, but the device keeps its pushers (Matrix specification, "Relationship between access
// tokens and devices" and "Soft logout"). Errors: [ErrWrongPassword], [ErrDeactivated].
func (s *Sessions) LogIn(ctx context.Context, user mxid.UserID, password, device string) (token string, err error) {
	secret := rand.Text()
	text, err := json.Marshal(session{hashSecret(secret), time.Now().UnixMilli()})
	if err != nil {
		return "", err
	}
	for {
		// The script cannot check the password, because a hash takes too long.
		stored, err := s.checkPassword(ctx, user, password)
		if err != nil {
			return "", err
		}
		answer, err := s.run(ctx, startSession, user, []hash{accountHash, devicesHash},
			passwordField, deactivatedField, stored, device, text)
		switch {
		case err != nil:
			s.ended(user) // the device's previous session may have ended
			return "", err
		case answer == "deactivated":
			return "", ErrDeactivated
		case answer == "ok":
			s.ended(user)
			return sessionToken(localpartOf(user), device, secret), nil
		}
	}
}

// CheckPassword checks a user's password. Errors: [ErrWrongPassword], [ErrDeactivated].
func (s *Sessions) CheckPassword(ctx context.Context, user mxid.UserID, password string) error {
	_, err := s.checkPassword(ctx, user, password)
	return err
}

// checkPassword also returns the stored form of the password.
func (s *Sessions) checkPassword(ctx context.Context, user mxid.UserID, password string) (stored string, err error) {
	var fields []any
	err = s.do(ctx, func(ctx context.Context, client redis.UniversalClient) (err error) {
		fields, err = client.HMGet(ctx, s.key(accountHash, user), passwordField, deactivatedField).Result()
		return err
	})
	if err != nil {
		return "", err
	}
	if fields[1] != nil {
		return "", ErrDeactivated
	}
	stored, _ = fields[0].(string)
	return stored, checkPassword(password, stored)
}

// SetPassword changes a user's password.
func (s *Sessions) SetPassword(ctx context.Context, user mxid.UserID, password string) error {
	text, err := hashPassword(password)
	if err != nil {
		return err
	}
	return s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.HSet(ctx, s.key(accountHash, user), passwordField, text).Err()
	})
}

// newPassword sets the password of an account (KEYS[1]) and ends the sessions of all other devices (KEYS[2]). It
// deletes these sessions one by one, so that the hash of sessions stays: while its slot moves, Redis would refuse to
// create it again.
var newPassword = redis.NewScript(`
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
for _, device in ipairs(redis.call('HKEYS', KEYS[2])) do
	if device ~= ARGV[3] then
		redis.call('HDEL', KEYS[2], device)
	end
end
return 'ok'
`)

// SetPasswordAndEndOthers changes a user's password and ends the sessions of all other devices, in one transaction: no
// other device keeps a session that began with the old password.
func (s *Sessions) SetPasswordAndEndOthers(ctx context.Context, user mxid.UserID, password, device string) error {
	text, err := hashPassword(password)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, newPassword, user, []hash{accountHash, devicesHash}, passwordField, text, device)
	s.ended(user)
	return err
}

// End ends the session of a device.
func (s *Sessions) End(ctx context.Context, user mxid.UserID, device string) error {
	err := s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.HDel(ctx, s.key(devicesHash, user), device).Err()
	})
	s.ended(user)
	return err
}

// EndAll ends all sessions of a user.
func (s *Sessions) EndAll(ctx context.Context, user mxid.UserID) error {
	err := s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		return client.Del(ctx, s.key(devicesHash, user)).Err()
	})
	s.ended(user)
	return err
}

// Deactivate ends all sessions of a user for ever and removes the user's other data.
func (s *Sessions) Deactivate(ctx context.Context, user mxid.UserID) error {
	err := s.do(ctx, func(ctx context.Context, client redis.UniversalClient) error {
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Del(ctx, s.key(accountHash, user), s.key(devicesHash, user), s.key(dataHash, user))
			return pipe.HSet(ctx, s.key(accountHash, user), deactivatedField, time.Now().UnixMilli()).Err()
		})
		return err
	})
	s.ended(user)
	return err
}
