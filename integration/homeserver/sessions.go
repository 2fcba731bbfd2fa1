package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// sessions are the users with their passwords and the devices that they are
// logged in with. To the module they are the [module.Accounts].
type sessions struct {
	*store
	serverName string
	waker      *waker
}

func newSessions(cfg config, store *store, waker *waker) *sessions {
	return &sessions{store, cfg.serverName, waker}
}

// The fields of a user's account.
const (
	passwordField    = "password" // its hash; missing where it is the default one
	deactivatedField = "deactivated"
)

// session is what is stored of a device that is logged in.
type session struct {
	SecretHash string `json:"secret_sha256"`
	CreatedTS  int64  `json:"created_ts"` // in milliseconds since 1970
}

// isOf reports whether the session is that of a token with a secret.
func (s *session) isOf(secret string) bool {
	return s != nil && subtle.ConstantTimeCompare([]byte(s.SecretHash), []byte(hashSecret(secret))) == 1
}

var (
	errWrongPassword = &matrixError{status: http.StatusForbidden, errcode: "M_FORBIDDEN", text: "Invalid username or password."}
	errDeactivated   = &matrixError{status: http.StatusForbidden, errcode: "M_USER_DEACTIVATED", text: "This account has been deactivated."}
)

// authenticate returns who a token belongs to.
func (s *sessions) authenticate(ctx context.Context, token string) (caller, error) {
	who, valid := callerOf(token, s.serverName)
	if !valid {
		return caller{}, module.ErrLoggedOut
	}
	return who, s.check(ctx, who)
}

// check refuses a caller whose session has ended. A token without a session is
// taken at its word, without a look at Redis.
func (s *sessions) check(ctx context.Context, who caller) error {
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

// LoggedIn implements [module.Accounts]. The device of a token without a
// session counts as logged in for the request that is made with it.
func (s *sessions) LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error) {
	deactivated, session, err := s.load(ctx, user, device)
	who := callerFrom(ctx)
	stateless := who.secret == "" && who.Requester == handlers.Requester{User: user, Device: device}
	return !deactivated && (device == "" || session != nil || stateless), err
}

// load returns what is known of a user and one of their devices, whose session
// is nil if it is not logged in.
func (s *sessions) load(ctx context.Context, user mxid.UserID, device string) (deactivated bool, found *session, err error) {
	var flag *redis.BoolCmd
	var field *redis.SliceCmd
	err = s.ask(ctx, func(ctx context.Context) error {
		_, err := s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			flag = pipe.HExists(ctx, s.accountKey(user), deactivatedField)
			field = pipe.HMGet(ctx, s.devicesKey(user), device)
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

// logIn starts a session of a device and returns its token. The device's last
// one ends by it, but not the device: its pushers stay (Matrix specification,
// "Relationship between access tokens and devices" and "Soft logout").
func (s *sessions) logIn(ctx context.Context, user mxid.UserID, password, device string) (token string, err error) {
	secret := rand.Text()
	stored, err := json.Marshal(session{hashSecret(secret), time.Now().UnixMilli()})
	if err != nil {
		return "", err
	}
	err = s.change(ctx, func(ctx context.Context, tx *redis.Tx) error {
		if err := s.compare(ctx, tx, user, password); err != nil {
			return err
		}
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.HSet(ctx, s.devicesKey(user), device, stored).Err()
		})
		return err
	}, s.accountKey(user))
	s.waker.wake(user)
	return sessionToken(localpartOf(user), device, secret), err
}

// checkPassword refuses a password that is not the user's.
func (s *sessions) checkPassword(ctx context.Context, user mxid.UserID, password string) error {
	return s.ask(ctx, func(ctx context.Context) error { return s.compare(ctx, s.redis, user, password) })
}

func (s *sessions) compare(ctx context.Context, client redis.Cmdable, user mxid.UserID, password string) error {
	fields, err := client.HMGet(ctx, s.accountKey(user), passwordField, deactivatedField).Result()
	if err != nil {
		return err
	}
	if fields[1] != nil {
		return errDeactivated
	}
	stored, _ := fields[0].(string)
	same, err := isPassword(password, []byte(stored))
	if err == nil && !same {
		err = errWrongPassword
	}
	return err
}

// setPassword changes a user's password.
func (s *sessions) setPassword(ctx context.Context, user mxid.UserID, password string) error {
	hash, err := hashPassword(password)
	if err != nil {
		return err
	}
	return s.ask(ctx, func(ctx context.Context) error {
		return s.redis.HSet(ctx, s.accountKey(user), passwordField, hash).Err()
	})
}

// newPassword sets the password of an account, KEYS[1], and ends the sessions of
// all devices, KEYS[2], but one. It is a script since transactions would have
// to wait for a moment without logins.
var newPassword = redis.NewScript(`
local kept = redis.call('HGET', KEYS[2], ARGV[3])
redis.call('DEL', KEYS[2])
if kept then
	redis.call('HSET', KEYS[2], ARGV[3], kept)
end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
`)

// setPasswordAndEndOthers changes a user's password and ends the sessions of
// all devices but one, in one step: none that began with the old password is
// left.
func (s *sessions) setPasswordAndEndOthers(ctx context.Context, user mxid.UserID, password, device string) error {
	hash, err := hashPassword(password)
	if err != nil {
		return err
	}
	err = s.ask(ctx, func(ctx context.Context) error {
		keys := []string{s.accountKey(user), s.devicesKey(user)}
		return newPassword.Run(ctx, s.redis, keys, passwordField, hash, device).Err()
	})
	s.waker.wake(user)
	return err
}

// end ends the session of a device.
func (s *sessions) end(ctx context.Context, user mxid.UserID, device string) error {
	err := s.ask(ctx, func(ctx context.Context) error {
		return s.redis.HDel(ctx, s.devicesKey(user), device).Err()
	})
	s.waker.wake(user)
	return err
}

// endAll ends all sessions of a user.
func (s *sessions) endAll(ctx context.Context, user mxid.UserID) error {
	err := s.ask(ctx, func(ctx context.Context) error {
		return s.redis.Del(ctx, s.devicesKey(user)).Err()
	})
	s.waker.wake(user)
	return err
}

// deactivate ends all sessions of a user for ever.
func (s *sessions) deactivate(ctx context.Context, user mxid.UserID) error {
	err := s.ask(ctx, func(ctx context.Context) error {
		_, err := s.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Del(ctx, s.accountKey(user), s.devicesKey(user), s.filtersKey(user))
			return pipe.HSet(ctx, s.accountKey(user), deactivatedField, time.Now().UnixMilli()).Err()
		})
		return err
	})
	s.waker.wake(user)
	return err
}
