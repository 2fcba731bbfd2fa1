package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func putRoom(id string) func(*pushrule.Ruleset, bool) error {
	return func(rules *pushrule.Ruleset, _ bool) error {
		return rules.Put(pushrule.Room, id, pushrule.Draft{}, pushrule.Position{})
	}
}

func ruleVersions(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	var last module.Content
	for i := range 10 {
		content, err := hosts[i%2].Update(t.Context(), user, putRoom(name(i)))
		wantNoError(t, err)
		if content.Version <= last.Version {
			t.Errorf("version %d came after %d", content.Version, last.Version)
		}
		last = content
	}
	same, err := hosts[0].Update(t.Context(), user, func(*pushrule.Ruleset, bool) error { return nil })
	wantNoError(t, err)
	loaded, err := hosts[1].Load(t.Context(), user)
	wantNoError(t, err)
	for _, content := range []module.Content{same, loaded} {
		wantContent(t, content, last.Rules)
		if content.Version != last.Version {
			t.Errorf("got version %d of what has version %d", content.Version, last.Version)
		}
	}
	wantNoError(t, hosts[0].Delete(t.Context(), user))
	anew, err := hosts[1].Update(t.Context(), user, putRoom("anew"))
	wantNoError(t, err)
	if anew.Version <= last.Version {
		t.Errorf("version %d after the deletion of %d", anew.Version, last.Version)
	}
}

func loadManyRules(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	store := newStore(t)
	var users []mxid.UserID
	want := map[mxid.UserID]int64{}
	for i := range 20 {
		user := newUser()
		users = append(users, user, user)
		if i%4 != 0 {
			content, err := store.Update(t.Context(), user, putRoom(string(user)))
			wantNoError(t, err)
			want[user] = content.Version
		}
	}
	bad := badUsers()
	loaded := store.LoadMany(t.Context(), append(users, bad...))
	if len(loaded) != 20+len(bad) || loaded[bad[0]].Err == nil {
		t.Errorf("got %d results, want %d", len(loaded), 20+len(bad))
	}
	for _, user := range users {
		content, err := loaded[user].Value, loaded[user].Err
		_, found := content.Rules.Rule(pushrule.Room, string(user))
		if err != nil || content.Version != want[user] || found != (want[user] != 0) {
			t.Errorf("got version %d, error %v, want version %d", content.Version, err, want[user])
		}
	}
	if none := store.LoadMany(t.Context(), nil); len(none) != 0 {
		t.Errorf("got %d results for nobody", len(none))
	}
}

func deletedRules(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	hosts, user := [2]module.RuleStore{newStore(t), newStore(t)}, newUser()
	wantNoError(t, hosts[0].Delete(t.Context(), user)) // without stored rules
	storeRules(t, hosts[0], user, pushrule.ServerDefault(user))
	wantNoError(t, hosts[1].Delete(t.Context(), user))
	wantNoRules(t, hosts[0], user)
}

func watchedRules(t *testing.T, newStore func(*testing.T) module.RuleStore) {
	ctx, stop := context.WithCancel(t.Context())
	var hosts [2]watcher
	for i := range hosts {
		hosts[i] = watcher{received: map[mxid.UserID]int64{}, started: make(chan struct{}), ended: make(chan error, 1)}
		hosts[i].run(ctx, newStore(t))
	}
	for i := range hosts {
		hosts[i].wait(t)
	}
	store := newStore(t)
	users := oddUsers()
	latest := map[mxid.UserID]int64{}
	for i := range 3 {
		for _, user := range users {
			content, err := store.Update(t.Context(), user, putRoom(name(i)))
			wantNoError(t, err)
			latest[user] = content.Version
		}
	}
	for _, user := range users {
		wantNoError(t, store.Delete(t.Context(), user))
		content, err := store.Update(t.Context(), user, putRoom("anew"))
		wantNoError(t, err)
		if content.Version <= latest[user] {
			t.Errorf("version %d of %q after the deletion of %d", content.Version, user, latest[user])
		}
		latest[user] = content.Version
	}
	for i := range hosts {
		for _, user := range users {
			hosts[i].want(t, user, latest[user])
		}
	}
	stop()
	for i := range hosts {
		select {
		case err := <-hosts[i].ended:
			if err == nil {
				t.Error("the end of a watch is no error")
			}
		case <-time.After(patience):
			t.Fatal("the watch does not end with its context")
		}
	}
}

// watcher is a host that watches a store, with the changes that it received.
type watcher struct {
	mu       sync.Mutex
	received map[mxid.UserID]int64 // the last version of each user
	started  chan struct{}
	ended    chan error
}

func (w *watcher) run(ctx context.Context, store module.RuleStore) {
	go func() {
		w.ended <- store.Watch(ctx, func() { close(w.started) }, func(c module.Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.received[c.User] = max(w.received[c.User], c.Version)
		})
	}()
}

func (w *watcher) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.started:
	case err := <-w.ended:
		t.Fatalf("the watch ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the watch did not start")
	}
}

func (w *watcher) want(t *testing.T, user mxid.UserID, version int64) {
	t.Helper()
	received := int64(0)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		received = w.received[user]
		w.mu.Unlock()
		if received >= version {
			break
		}
	}
	if received != version {
		t.Errorf("received version %d of %q, want %d", received, user, version)
	}
}
