package storetest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// Memory holds the stores of any number of hosts in memory. The stores fulfil the
// contracts of this package, and run each edit once. A test may access the maps while
// it holds the lock, or while no store is in use; watchers are not notified of the
// test's changes.
type Memory struct {
	// Before, if set, is called before each operation except Watch. Its error fails the
	// operation with [module.Unavailable].
	Before func(operation string) error

	sync.Mutex
	Contents map[mxid.UserID]module.Content
	Changes  int64 // number of changes of rules, and the last version
	Lists    map[mxid.UserID]pusher.List
	Claims   map[pusher.Digest]pusher.Claims
	Pending  map[pusher.Digest]int64 // the last claim of each pushkey
	Texts    map[mxid.UserID][]string
	watchers map[*func(module.Change)]bool

	pusherWatchers map[*func(module.PusherChange)]bool
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{
		Contents: map[mxid.UserID]module.Content{},
		Lists:    map[mxid.UserID]pusher.List{},
		Claims:   map[pusher.Digest]pusher.Claims{},
		Pending:  map[pusher.Digest]int64{},
		Texts:    map[mxid.UserID][]string{},
		watchers: map[*func(module.Change)]bool{},

		pusherWatchers: map[*func(module.PusherChange)]bool{},
	}
}

// Rules returns the store of rules.
func (m *Memory) Rules() module.RuleStore { return memoryRules{m} }

// Pushers returns the store of pushers.
func (m *Memory) Pushers() module.PusherStore { return memoryPushers{m} }

// Pushkeys returns the index of pushkeys.
func (m *Memory) Pushkeys() module.PushkeyIndex { return memoryPushkeys{m} }

// Unread returns the store of unread notifications.
func (m *Memory) Unread() module.UnreadStore { return memoryUnread{m} }

func (m *Memory) userStep(ctx context.Context, operation string, user mxid.UserID, do func() error) error {
	if err := user.Validate(); err != nil {
		return err
	}
	return m.step(ctx, operation, do)
}

func (m *Memory) step(ctx context.Context, operation string, do func() error) error {
	if m.Before != nil {
		if err := m.Before(operation); err != nil {
			return module.Unavailable(err)
		}
	}
	if err := ctx.Err(); err != nil {
		return module.Unavailable(err)
	}
	m.Lock()
	defer m.Unlock()
	return do()
}

func many[V any](users []mxid.UserID, one func(mxid.UserID) (V, error)) map[mxid.UserID]module.Result[V] {
	all := map[mxid.UserID]module.Result[V]{}
	for _, user := range users {
		value, err := one(user)
		all[user] = module.Result[V]{Value: value, Err: err}
	}
	return all
}

type memoryRules struct{ memory *Memory }

func (r memoryRules) Load(ctx context.Context, user mxid.UserID) (content module.Content, err error) {
	err = r.memory.userStep(ctx, "load rules", user, func() error { content = r.memory.Contents[user]; return nil })
	return content, err
}

func (r memoryRules) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	return many(users, func(user mxid.UserID) (module.Content, error) { return r.Load(ctx, user) })
}

func (r memoryRules) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	return many(users, func(user mxid.UserID) (int64, error) {
		content, err := r.Load(ctx, user)
		return content.Version, err
	})
}

func (r memoryRules) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (content module.Content, err error) {
	m := r.memory
	err = m.userStep(ctx, "update rules", user, func() error {
		content = m.Contents[user]
		before := string(content.Rules.AppendJSON(nil))
		if err := edit(&content.Rules, content.Found()); err != nil {
			return err
		}
		if content.Found() && string(content.Rules.AppendJSON(nil)) == before {
			return nil
		}
		m.Changes++
		content.Version = m.Changes
		m.Contents[user] = content
		for changed := range m.watchers {
			(*changed)(module.Change{User: user, Version: content.Version, Made: time.Now()})
		}
		return nil
	})
	if err != nil {
		return module.Content{}, err
	}
	return content, nil
}

func (r memoryRules) Delete(ctx context.Context, user mxid.UserID) error {
	return r.memory.userStep(ctx, "delete rules", user, func() error { delete(r.memory.Contents, user); return nil })
}

// Watch calls changed with the lock held.
func (r memoryRules) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	return watch(ctx, r.memory, r.memory.watchers, &changed, watching)
}

func watch[W comparable](ctx context.Context, m *Memory, watchers map[W]bool, watcher W, watching func()) error {
	set := func(change func()) {
		m.Lock()
		defer m.Unlock()
		change()
	}
	set(func() { watchers[watcher] = true })
	defer set(func() { delete(watchers, watcher) })
	watching()
	<-ctx.Done()
	return ctx.Err()
}

type memoryPushers struct{ memory *Memory }

func (p memoryPushers) Load(ctx context.Context, user mxid.UserID) (list pusher.List, err error) {
	err = p.memory.userStep(ctx, "load pushers", user, func() error { list = p.memory.Lists[user]; return nil })
	return list, err
}

func (p memoryPushers) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	return many(users, func(user mxid.UserID) (pusher.List, error) { return p.Load(ctx, user) })
}

func (p memoryPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	return p.memory.userStep(ctx, "update pushers", user, func() error {
		list := p.memory.Lists[user]
		if err := edit(&list); err != nil {
			return err
		}
		before := p.memory.Lists[user]
		p.memory.Lists[user] = list
		if !list.Equal(before) {
			p.changed(module.PusherChange{User: user, Repeated: list.EqualButClaims(before)})
		}
		return nil
	})
}

func (p memoryPushers) changed(c module.PusherChange) {
	for changed := range p.memory.pusherWatchers {
		(*changed)(c)
	}
}

// Watch calls changed with the lock held.
func (p memoryPushers) Watch(ctx context.Context, watching func(), changed func(module.PusherChange)) error {
	return watch(ctx, p.memory, p.memory.pusherWatchers, &changed, watching)
}

func (p memoryPushers) Delete(ctx context.Context, user mxid.UserID) error {
	return p.memory.userStep(ctx, "delete pushers", user, func() error {
		if _, found := p.memory.Lists[user]; found {
			delete(p.memory.Lists, user)
			p.changed(module.PusherChange{User: user})
		}
		return nil
	})
}

type memoryPushkeys struct{ memory *Memory }

func (i memoryPushkeys) Load(ctx context.Context, key pusher.Digest) (claims pusher.Claims, err error) {
	err = i.memory.step(ctx, "load claims", func() error { claims = i.memory.Claims[key]; return nil })
	return claims, err
}

func (i memoryPushkeys) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (claims pusher.Claims, err error) {
	err = i.memory.step(ctx, "update claims", func() error {
		claims = i.memory.Claims[key]
		if err := edit(&claims); err != nil {
			return err
		}
		i.memory.Claims[key] = claims
		return nil
	})
	if err != nil {
		return pusher.Claims{}, err
	}
	return claims, nil
}

func (i memoryPushkeys) MarkPending(ctx context.Context, u module.PendingPushkey) error {
	return i.memory.step(ctx, "mark pending", func() error {
		i.memory.Pending[u.Key] = max(i.memory.Pending[u.Key], u.Claim)
		return nil
	})
}

func (i memoryPushkeys) ClearPending(ctx context.Context, u module.PendingPushkey) error {
	return i.memory.step(ctx, "clear pending", func() error {
		if i.memory.Pending[u.Key] <= u.Claim {
			delete(i.memory.Pending, u.Key)
		}
		return nil
	})
}

func (i memoryPushkeys) Pending(ctx context.Context, before time.Time, limit int) (all []module.PendingPushkey, err error) {
	err = i.memory.step(ctx, "list pending", func() error {
		for key, claim := range i.memory.Pending {
			if before.IsZero() || claim < before.UnixMicro() {
				all = append(all, module.PendingPushkey{Key: key, Claim: claim})
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b module.PendingPushkey) int { return cmp.Compare(a.Claim, b.Claim) })
	return all[:min(limit, len(all))], err
}

type memoryUnread struct{ memory *Memory }

func (u memoryUnread) Append(ctx context.Context, texts []module.UserText) []module.Result[int] {
	lengths := make([]module.Result[int], len(texts))
	for i, text := range texts {
		lengths[i].Err = u.memory.userStep(ctx, "append text", text.User, func() error {
			u.memory.Texts[text.User] = append(u.memory.Texts[text.User], text.Text)
			lengths[i].Value = len(u.memory.Texts[text.User])
			return nil
		})
	}
	return lengths
}

func (u memoryUnread) Load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[[]string] {
	return many(users, func(user mxid.UserID) (texts []string, err error) {
		err = u.memory.userStep(ctx, "load texts", user, func() error { texts = slices.Clone(u.memory.Texts[user]); return nil })
		return texts, err
	})
}

var errNoTexts = errors.New("a replacement of no texts")

func (u memoryUnread) Replace(ctx context.Context, all []module.UnreadReplacement) []module.Result[bool] {
	done := make([]module.Result[bool], len(all))
	for i, r := range all {
		done[i].Err = u.memory.userStep(ctx, "replace texts", r.User, func() error {
			n, texts := len(r.First), u.memory.Texts[r.User]
			if n == 0 {
				return errNoTexts
			}
			if len(texts) >= n && slices.Equal(texts[:n], r.First) {
				u.memory.Texts[r.User] = append([]string{r.By}, texts[n:]...)
				done[i].Value = true
			}
			return nil
		})
	}
	return done
}

func (u memoryUnread) Delete(ctx context.Context, user mxid.UserID) error {
	return u.memory.userStep(ctx, "delete texts", user, func() error { delete(u.memory.Texts, user); return nil })
}
