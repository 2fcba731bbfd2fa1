// Package storetest tests the contracts of the module's stores on any implementation.
//
//	func TestStore(t *testing.T) {
//		database := newDatabase(t)
//		storetest.Rules(t, func(*testing.T) module.RuleStore { return mystore.New(database) }, database.plant)
//	}
//
// Each call of the given function returns the store of another host on the same data.
// So return a new store each time, with a separate connection and cache, on one
// database. The tests use random users, so the database need not be empty. Package
// integration/sqlstore is an example with its test. [Memory] is an in-memory double of
// the stores for other tests.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	writers  = 64
	patience = 60 * time.Second
)

func newUser() mxid.UserID {
	return mxid.UserID("@" + strings.ToLower(rand.Text()) + ":example.org")
}

// oddUsers returns valid user ids that a store must keep apart.
func oddUsers() []mxid.UserID {
	unique := strings.ToLower(rand.Text())
	users := []mxid.UserID{mxid.UserID("@" + strings.Repeat("x", mxid.MaxUserIDBytes-len(unique)-2) + ":" + unique)}
	for _, localpart := range []string{
		"", "a", "A", "a}", "{a", "{a}", "}{", "{}", "a:b", "a b", "a\n", "a/b", "a%2Fb", "ü", "u\u0308", "🦊", "*", "?", "[a]",
		"a}:m.push_rules", "a}:writes",
	} {
		users = append(users, mxid.UserID("@"+localpart+":"+unique))
	}
	return users
}

// together runs do for all writers in parallel.
func together(t *testing.T, do func(ctx context.Context, writer int) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			if err := do(ctx, writer); err != nil {
				t.Errorf("writer %d: %v", writer, err)
			}
		})
	}
	group.Wait()
}

// persist repeats do if the store times out under load.
func persist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil {
			return err
		}
	}
}

// wantRefused checks that each call fails for an invalid user id, and for a context
// that has ended.
func wantRefused(t *testing.T, user mxid.UserID, calls func(ctx context.Context, user mxid.UserID) map[string]error) {
	t.Helper()
	for _, bad := range badUsers() {
		for name, err := range calls(t.Context(), bad) {
			if err == nil {
				t.Errorf("%s(%q) gave no error", name, bad)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range calls(ctx, user) {
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s with a context that has ended: got error %v, want one of kind %s", name, err, fault.Unavailable)
		}
	}
}

func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got error %v, want one of kind %s", err, fault.Unavailable)
	}
}

func wantNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantEqual(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

var errRefused = errors.New("refused by the edit")

func name(i int) string { return fmt.Sprintf("writer-%02d", i) }

// badUsers returns invalid user ids. Their keys could collide with other keys or be in
// another hash slot.
func badUsers() []mxid.UserID {
	return []mxid.UserID{
		"", "a:b", "}:b", "{}:b", "@a", "@\xff:b", mxid.UserID("@" + strings.Repeat("x", mxid.MaxUserIDBytes) + ":b"),
	}
}
