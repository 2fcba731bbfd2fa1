package service_test

import (
	"context"
	"errors"
	"slices"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
)

type memory struct {
	*storetest.Memory
	module.PusherStore
}

func newMemory() *memory {
	m := storetest.NewMemory()
	return &memory{Memory: m, PusherStore: m.Pushers()}
}

func (m *memory) index() module.PushkeyIndex { return m.Pushkeys() }

func (m *memory) owners(key pusher.Key) (users []mxid.UserID) {
	m.Lock()
	defer m.Unlock()
	for user, list := range m.Lists {
		if _, found := list.Pusher(key); found {
			users = append(users, user)
		}
	}
	slices.Sort(users)
	return users
}

var errDied = errors.New("the process has ended")

// ruleMemory starts with equal rules for all users. Tests look at alice's.
type ruleMemory struct {
	*storetest.Memory
	module.RuleStore
	meanwhile func(*ruleMemory) // called once, before an update commits, for changes by another host
	first     int64             // the changes before the test's
}

func rulesOf(content module.Content) *ruleMemory {
	m := storetest.NewMemory()
	r := &ruleMemory{Memory: m, RuleStore: m.Rules()}
	r.set(content)
	return r
}

// set replaces the content of all users, as another program would.
func (r *ruleMemory) set(content module.Content) {
	r.Lock()
	defer r.Unlock()
	for _, user := range []mxid.UserID{alice, bob, carol, dave} {
		r.Contents[user] = content
	}
	r.Changes, r.first = content.Version, content.Version
}

// racing returns an empty store on which another host writes first.
func racing(content module.Content) *ruleMemory {
	r := rulesOf(module.Content{})
	r.meanwhile = func(r *ruleMemory) { r.set(content) }
	return r
}

func (r *ruleMemory) commits() int {
	r.Lock()
	defer r.Unlock()
	return int(r.Changes - r.first)
}

func (r *ruleMemory) content() module.Content {
	r.Lock()
	defer r.Unlock()
	return r.Contents[alice]
}

func (r *ruleMemory) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (module.Content, error) {
	if meanwhile := r.meanwhile; meanwhile != nil {
		content := r.content()
		_ = edit(&content.Rules, content.Found()) // its commit loses the race
		r.meanwhile = nil
		meanwhile(r)
	}
	return r.RuleStore.Update(ctx, user, edit)
}
