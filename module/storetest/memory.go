package storetest

import (
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
	Entries  map[pusher.Digest]pusher.Entry
	Texts    map[mxid.UserID][]string
	watchers map[*func(module.Change)]bool

	pusherWatchers map[*func(module.PusherChange)]bool
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{
		Contents: map[mxid.UserID]module.Content{},
		Lists:    map[mxid.UserID]pusher.List{},
		Entries:  map[pusher.Digest]pusher.Entry{},
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

func many[K comparable, V any](keys []K, one func(K) (V, error)) map[K]module.Result[V] {
	all := map[K]module.Result[V]{}
	for _, key := range keys {
		value, err := one(key)
		all[key] = module.Result[V]{Value: value, Err: err}
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

func (i memoryPushkeys) Load(ctx context.Context, key pusher.Digest) (entry pusher.Entry, err error) {
	err = i.memory.step(ctx, "load entry", func() error { entry = i.memory.Entries[key]; return nil })
	return entry, err
}

func (i memoryPushkeys) LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]module.Result[pusher.Entry] {
	return many(keys, func(key pusher.Digest) (pusher.Entry, error) { return i.Load(ctx, key) })
}

func (i memoryPushkeys) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (entry pusher.Entry, err error) {
	m := i.memory
	err = m.step(ctx, "update entry", func() error {
		before := m.Entries[key]
		entry = before
		if err := edit(&entry); err != nil {
			return err
		}
		m.Entries[key] = entry
		for _, user := range before.Lost(entry) {
			memoryPushers{m}.changed(module.PusherChange{User: user})
		}
		return nil
	})
	if err != nil {
		return pusher.Entry{}, err
	}
	return entry, nil
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

func (u memoryUnread) Partition(_ context.Context, users []mxid.UserID) [][]mxid.UserID {
	return [][]mxid.UserID{users}
}

func (u memoryUnread) Delete(ctx context.Context, user mxid.UserID) error {
	return u.memory.userStep(ctx, "delete texts", user, func() error { delete(u.memory.Texts, user); return nil })
}
