package service_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/storetest"
)

type memory struct {
	*storetest.Memory
	module.PusherStore
	dead map[mxid.UserID]int64 // of thePushkey: the number of the user's claim that another user has taken last
}

func newMemory() *memory {
	m := storetest.NewMemory()
	return &memory{m, m.Pushers(), map[mxid.UserID]int64{}}
}

func (m *memory) index() module.PushkeyIndex { return m.Pushkeys() }

// owners returns the users with a visible pusher of a key.
func (m *memory) owners(key pusher.Key) (users []mxid.UserID) {
	m.Lock()
	defer m.Unlock()
	entry := m.Entries[key.Digest()]
	for user, list := range m.Lists {
		if p, found := list.Pusher(key); found && entry.Shows(user, p.Claim) {
			users = append(users, user)
		}
	}
	slices.Sort(users)
	return users
}

// stored returns the users with a stored pusher of a key, visible or not.
func (m *memory) stored(key pusher.Key) (users []mxid.UserID) {
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

// wantNoneTaken checks that no pusher is visible that another user has taken.
func (m *memory) wantNoneTaken(t *testing.T) {
	t.Helper()
	for _, user := range m.owners(thePushkey) {
		list := m.Lists[user]
		if p, _ := list.Pusher(thePushkey); p.Claim <= m.dead[user] {
			t.Errorf("%s has the pusher with claim %d, which was taken", user, p.Claim)
		}
	}
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
