package module_test

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

// memory is the pusher stores of all hosts.
type memory struct {
	*storetest.Memory
	module.PusherStore
}

func newMemory() *memory {
	m := storetest.NewMemory()
	return &memory{m, m.Pushers()}
}

func (m *memory) index() module.PushkeyIndex { return m.Pushkeys() }

// owners returns the users who have a pusher of a key, in order.
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

// ruleMemory is the rules of users who begin with the same content. Tests look at
// that of alice.
type ruleMemory struct {
	*storetest.Memory
	module.RuleStore
	meanwhile func(*ruleMemory) // what another host does before an update of this one commits, once
	first     int64             // the changes before the test's
}

// rulesOf returns a store that has the content.
func rulesOf(content module.Content) *ruleMemory {
	m := storetest.NewMemory()
	r := &ruleMemory{Memory: m, RuleStore: m.Rules()}
	r.set(content)
	return r
}

// set replaces the content of all users, as somebody else would.
func (r *ruleMemory) set(content module.Content) {
	r.Lock()
	defer r.Unlock()
	for _, user := range []mxid.UserID{alice, bob, carol, dave} {
		r.Contents[user] = content
	}
	r.Changes, r.first = content.Version, content.Version
}

// racing returns an empty store in which another host is first.
func racing(content module.Content) *ruleMemory {
	r := rulesOf(module.Content{})
	r.meanwhile = func(r *ruleMemory) { r.set(content) }
	return r
}

// commits counts the changes that the stores have made.
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
