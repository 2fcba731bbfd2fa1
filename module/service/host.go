package service

import (
	"context"
	"errors"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

var _ module.HostService = (*hostService)(nil)

// hostService reads single users' rules through rules, which the host may have wrapped.
type hostService struct {
	rules   module.RuleService
	edits   *ruleService
	pushers *pusherService
	imports *importer
	unread  module.UnreadStore // may be nil
	mail    *mail.Tokens       // nil without mail
	bounces *bounces
}

func (s *hostService) EnsureDefaults(ctx context.Context, user mxid.UserID) error {
	_, err := s.rules.Content(ctx, user)
	return err
}

func (s *hostService) RefreshDefaults(ctx context.Context, user mxid.UserID) error {
	return s.edits.refreshDefaults(ctx, user)
}

func (s *hostService) Import(ctx context.Context, user mxid.UserID, from module.Import, how module.ImportMode) (module.ImportResult, error) {
	return s.imports.run(ctx, user, from, how)
}

func (s *hostService) ForgetUser(ctx context.Context, user mxid.UserID) error {
	failed := s.imports.forget(ctx, user)
	if s.unread != nil {
		failed = errors.Join(failed, s.unread.Delete(ctx, user))
	}
	return failed
}

func (s *hostService) RemoveDevicePushers(ctx context.Context, user mxid.UserID, devices ...string) error {
	return s.pushers.removeDevices(ctx, user, devices)
}

func (s *hostService) KeepOnlyDevicePushers(ctx context.Context, user mxid.UserID, device string) error {
	return s.pushers.keepOnlyDevice(ctx, user, device)
}

func (s *hostService) RetainDevicePushers(ctx context.Context, user mxid.UserID, liveDevices ...string) error {
	return s.pushers.retainDevices(ctx, user, liveDevices)
}

func (s *hostService) CopyRoomRules(ctx context.Context, user mxid.UserID, oldRoom, newRoom string) error {
	return s.edits.copyRoomRules(ctx, user, oldRoom, newRoom)
}

func (s *hostService) AccountData(ctx context.Context, user mxid.UserID) ([]byte, error) {
	content, err := s.rules.Content(ctx, user)
	if err != nil {
		return nil, err
	}
	return content.AppendJSON(nil), nil
}

func (s *hostService) Rulesets(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	return s.edits.rulesets(ctx, users)
}

func (s *hostService) Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	return s.pushers.loadLive(ctx, users)
}

func (s *hostService) RemovePusher(ctx context.Context, user mxid.UserID, key pusher.Key, setAt int64) error {
	_, err := s.pushers.remove(ctx, user, func(p pusher.Pusher) bool { return p.Key == key && p.SetAt == setAt })
	return err
}

var errMailToken = fault.New(fault.InvalidParam, "This link is not valid, or it has expired.")

func (s *hostService) MailUser(ctx context.Context, token string) (user mxid.UserID, app string, err error) {
	grant, isValid := s.mail.ReadUnsubscribe(token)
	if !isValid {
		return "", "", errMailToken
	}
	list, err := s.pushers.List(ctx, grant.User)
	if err != nil {
		return grant.User, "", nil // the page can do without the app
	}
	for _, p := range list.All() {
		if isMail(p, grant) {
			app = mail.OneLine(p.AppDisplayName)
		}
	}
	return grant.User, app, nil
}

func (s *hostService) Unsubscribe(ctx context.Context, token string) error {
	grant, isValid := s.mail.ReadUnsubscribe(token)
	if !isValid {
		return errMailToken
	}
	_, err := s.pushers.remove(ctx, grant.User, func(p pusher.Pusher) bool { return isMail(p, grant) })
	return err
}

func (s *hostService) MailBounced(ctx context.Context, token string) error {
	grant, isValid := s.mail.ReadBounce(token)
	if !isValid {
		return errMailToken
	}
	entry, failed := s.pushers.pushkeys.Pushkeys.Load(ctx, grant.Pushkey)
	for _, user := range entry.Users {
		var stopped error
		removed, err := s.pushers.remove(ctx, user, func(p pusher.Pusher) bool {
			if !isMail(p, grant) || !time.UnixMicro(p.SetAt).Before(grant.Until) {
				return false
			}
			stopped = s.countBounce(user)
			return stopped == nil
		})
		s.pushers.pushkeys.report(observe.PusherRemoved, user, removed...)
		failed = errors.Join(failed, err, stopped)
	}
	return failed
}

// countBounce counts a user who is about to lose a pusher. It refuses a user above the limit.
func (s *hostService) countBounce(user mxid.UserID) error {
	stopped, isNew := s.bounces.add(user, time.Now())
	if isNew {
		s.pushers.pushkeys.observer.Report(observe.TooManyRejections, errTooManyBounces)
	}
	if stopped {
		return errTooManyBounces
	}
	return nil
}

func isMail(p pusher.Pusher, grant mail.Grant) bool {
	return p.Kind.IsAddress() && p.Digest() == grant.Pushkey
}
