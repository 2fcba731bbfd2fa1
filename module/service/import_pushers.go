package service

import (
	"context"
	"errors"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// importPushers stores pushers for a user without pushers. Their claims precede all
// claims made by this module: an imported pusher never takes a pushkey from another user,
// and loses its pushkey to any later claim.
func (i *importer) importPushers(
	ctx context.Context, user mxid.UserID, pushers []pusher.Pusher, how module.ImportMode,
) (result module.ImportedPushers, err error) {
	if len(pushers) == 0 {
		return module.ImportedPushers{Outcome: module.NothingToImport}, nil
	}
	list, err := i.pushers.store.Load(ctx, user)
	switch {
	case fault.KindOf(err) == fault.Database || err == nil && list.Len() > 0: // unreadable pushers stay, too
		return module.ImportedPushers{Outcome: module.AlreadyThere}, nil
	case err != nil:
		return result, err
	}
	m := &pusherImport{pusherService: i.pushers, user: user, ImportedPushers: module.ImportedPushers{Outcome: module.Imported}}
	if err := m.accept(ctx, pushers); err != nil {
		return result, err
	}
	if how == module.DryRunImport {
		err = m.rehearse(ctx)
	} else {
		err = m.store(ctx)
	}
	return m.ImportedPushers, err
}

type pusherImport struct {
	*pusherService
	module.ImportedPushers

	user    mxid.UserID
	list    pusher.List     // the accepted pushers
	claimed []pusher.Pusher // the accepted pushers that have a claim
}

func (m *pusherImport) refuse(p pusher.Pusher, err error) {
	m.Refused = append(m.Refused, module.RefusedPusher{AppID: p.AppID, Key: p.Digest(), Err: err})
}

func (m *pusherImport) accept(ctx context.Context, pushers []pusher.Pusher) error {
	now := m.pushkeys.now().UnixMicro()
	for _, given := range pushers {
		p, err := m.policy.CheckImported(given)
		if _, twice := m.list.Pusher(given.Key); err == nil && twice {
			err = pusher.ErrTwice
		}
		if err == nil && p.Kind == pusher.Email {
			if err = m.confirmAddress(ctx, m.user, p); fault.KindOf(err) == fault.Unavailable {
				return err
			}
		}
		if p.SetAt <= 0 || p.SetAt > now {
			p.SetAt = now
		}
		if err == nil {
			err = m.addWithinLimits(p)
		}
		if err != nil {
			m.refuse(given, err)
		}
	}
	return m.keepLive(ctx)
}

func (m *pusherImport) addWithinLimits(p pusher.Pusher) error {
	p.Claim = pusher.KeepOthers.Claim(int64(m.policy.MaxSharers)) // counts in the pusher's size; the final claim has as many digits
	grown := m.list
	grown.Set(p)
	if err := m.policy.CheckGrowth(m.list.Size(), grown.Size()); err != nil {
		return err
	}
	m.list = grown
	return nil
}

// keepLive refuses the pushers of devices that are gone.
func (m *pusherImport) keepLive(ctx context.Context) error {
	accounts := m.accounts
	if accounts == nil {
		return nil
	}
	gone, err := m.withoutSession(ctx, m.user, m.list)
	if err != nil {
		return err
	}
	for _, p := range gone.All() {
		m.list.Delete(p.Key)
		m.refuse(p, module.ErrLoggedOut)
	}
	return nil
}

// rehearse predicts the result of store, for a dry run.
func (m *pusherImport) rehearse(ctx context.Context) error {
	for _, p := range m.list.All() {
		claims, err := m.pushkeys.Pushkeys.Load(ctx, p.Digest())
		if err != nil {
			return err
		}
		taken, err := m.isTaken(ctx, p, claims)
		if err != nil {
			return err
		}
		before := len(claims.Users())
		claims.AddFirst(m.user)
		refusal := m.policy.CheckSharing(before, &claims)
		if taken {
			refusal = pusher.ErrTaken
		}
		if refusal != nil {
			m.refuse(p, refusal)
			continue
		}
		m.Stored++
	}
	return nil
}

// store writes in the order of [pusherService.claim].
func (m *pusherImport) store(ctx context.Context) error {
	if err := m.claim(ctx); err != nil {
		m.releaseAll(ctx)
		return err
	}
	there := false
	err := m.pusherService.store.Update(ctx, m.user, func(list *pusher.List) error {
		if there = list.Len() > 0; there {
			return nil
		}
		for _, p := range m.claimed {
			list.Set(p)
		}
		return nil
	})
	if err != nil {
		if fault.KindOf(err) != fault.Unavailable { // after Unavailable they may be stored
			m.releaseAll(ctx)
		}
		return err
	}
	if there {
		m.releaseAll(ctx)
		m.ImportedPushers = module.ImportedPushers{Outcome: module.AlreadyThere}
		return nil
	}
	m.Stored = len(m.claimed)
	return m.check(ctx)
}

// claim refuses pushers whose pushkey other users have taken.
func (m *pusherImport) claim(ctx context.Context) error {
	for _, p := range m.list.All() {
		claims, err := m.addClaim(ctx, &p)
		if err != nil && fault.KindOf(err) == fault.InvalidParam {
			m.refuse(p, err)
			continue
		}
		if err != nil {
			return err
		}
		m.claimed = append(m.claimed, p)
		if _, rival := claims.Last(m.user); rival == 0 {
			continue
		}
		taken, err := m.isTaken(ctx, p, claims)
		if err != nil {
			return err
		}
		if taken {
			m.claimed = m.claimed[:len(m.claimed)-1]
			m.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: m.user, Claim: p.Claim.Number})
			m.refuse(p, pusher.ErrTaken)
			continue
		}
		if err := m.pushkeys.Pushkeys.MarkPending(ctx, module.PendingPushkey{Key: p.Digest(), Claim: claims.Newest()}); err != nil {
			return err
		}
	}
	return nil
}

// addClaim gives a pusher a claim that precedes all claims made here.
func (m *pusherImport) addClaim(ctx context.Context, p *pusher.Pusher) (pusher.Claims, error) {
	var number int64
	claims, err := m.pushkeys.Pushkeys.Update(ctx, p.Digest(), func(c *pusher.Claims) error {
		before := len(c.Users())
		number = c.AddFirst(m.user)
		return m.policy.CheckSharing(before, c)
	})
	p.Claim = pusher.KeepOthers.Claim(number)
	return claims, err
}

// isTaken reports whether another user has taken the pusher's pushkey. Sharing it, by
// "append" or by import, does not take it.
func (m *pusherImport) isTaken(ctx context.Context, p pusher.Pusher, claims pusher.Claims) (bool, error) {
	held, err := m.pushkeys.held(ctx, p.Key, claims)
	for user, other := range held {
		if user != m.user && other.Claim.Removes != 0 {
			return true, err
		}
	}
	return false, err
}

func (m *pusherImport) releaseAll(ctx context.Context) {
	for _, p := range m.claimed {
		m.pushkeys.release(ctx, p.Digest(), pusher.Owner{User: m.user, Claim: p.Claim.Number})
	}
}

// check removes stored pushers whose device is gone by now, or whose pushkey another user
// has taken.
func (m *pusherImport) check(ctx context.Context) error {
	for _, p := range m.claimed {
		err := m.checkLoggedIn(ctx, m.user, p)
		if errors.Is(err, module.ErrLoggedOut) {
			m.Stored--
			m.refuse(p, err)
			continue
		}
		if err != nil {
			return err
		}
		claims, err := m.pushkeys.Pushkeys.Load(ctx, p.Digest())
		if err != nil {
			return err
		}
		if _, rival := claims.Last(m.user); rival != 0 {
			if err := m.pushkeys.reconcile(ctx, p.Key, claims, p.Claim.Number, pusher.Owner{}); err != nil {
				return err
			}
		}
	}
	return nil
}
