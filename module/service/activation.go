package service

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Activation activates pushers of a kind that [pusher.Kind.NeedsAck].
type Activation interface {
	// Invite pushes a token to a user's inactive pusher: any host does so, when Invite has returned.
	Invite(ctx context.Context, user mxid.UserID, key pusher.Key) error

	// ReadAckToken returns the pusher and the time of the set that a user's token is for. Ok is false
	// for an invalid token, and for that of another user.
	ReadAckToken(user mxid.UserID, token string) (key pusher.Digest, setAt int64, ok bool)
}

// ackTokenFor is how long a token is valid.
const ackTokenFor = 24 * time.Hour

var (
	errNoInactive      = fault.New(fault.NotFound, "There is no pusher of this app_id that needs a token.")
	errUnknownAckToken = fault.New(fault.UnknownAckToken, "ack_token is not that of the pusher's last set.")
	errExpiredAckToken = fault.New(fault.ExpiredAckToken, "ack_token has expired: set the pusher again.")
	errNoActivation    = errors.New("service: a kind of pushers needs an Activation, and there is none")
)

// Activate makes one change of the user's pushers, so a concurrent set or removal is before it or after
// it. A repetition succeeds: the first answer may be lost.
func (s *pusherService) Activate(ctx context.Context, user mxid.UserID, appID, token string) error {
	var key pusher.Digest
	var setAt int64
	if s.activation != nil {
		key, setAt, _ = s.activation.ReadAckToken(user, token)
	}
	isExpired := s.pushkeys.now().Sub(time.UnixMicro(setAt)) > ackTokenFor
	return s.store.Update(ctx, user, func(list *pusher.List) error {
		err := errNoInactive
		for _, p := range list.All() {
			switch {
			case p.AppID != appID || !p.Kind.NeedsAck():
				continue
			case p.Digest() != key || p.SetAt != setAt:
				err = errUnknownAckToken
				continue
			case isExpired && !p.Activated:
				return errExpiredAckToken
			}
			p.Activated = true
			list.Set(p)
			return nil
		}
		return err
	})
}

// invite pushes a token to a pusher that was set and is inactive.
func (s *setting) invite(ctx context.Context) error {
	switch {
	case !s.p.Kind.NeedsAck() || s.others == pusher.Imported:
		return nil
	case s.activation == nil:
		return errNoActivation
	}
	return s.activation.Invite(ctx, s.user, s.p.Key)
}
