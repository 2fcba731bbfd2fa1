package service_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

// ledger is accounts with known ended sessions, and with users for which calls fail.
type ledger struct {
	gone   []module.Session
	broken []mxid.UserID

	mu    sync.Mutex
	calls int
	asked []module.Session
}

func (l *ledger) LoggedIn(_ context.Context, user mxid.UserID, device string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	return l.answer(module.Session{User: user, Device: device})
}

func (l *ledger) answer(session module.Session) (bool, error) {
	l.asked = append(l.asked, session)
	if slices.Contains(l.broken, session.User) {
		return true, errDied
	}
	return !slices.Contains(l.gone, session), nil
}

// bulkLedger returns no result for unknown users.
type bulkLedger struct {
	*ledger
	unknown mxid.UserID
}

func (l bulkLedger) LoggedInMany(_ context.Context, sessions []module.Session) map[module.Session]module.Result[bool] {
	l.calls++
	all := map[module.Session]module.Result[bool]{}
	for _, session := range sessions {
		if session.User != l.unknown {
			value, err := l.answer(session)
			all[session] = module.Result[bool]{Value: value, Err: err}
		}
	}
	return all
}

func TestStoredPushersOfEndedSessionsAreOmitted(t *testing.T) {
	t.Parallel()
	everything := []pusher.Pusher{
		ownPusher("phone", pusher.HTTP, "PHONE"), ownPusher("tablet", pusher.HTTP, "TABLET"), ownPusher("second of the tablet", pusher.HTTP, "TABLET"),
		ownPusher("tablet@mail", pusher.Email, "TABLET"), ownPusher("none", pusher.HTTP, ""),
	}
	m := newMemory()
	for _, user := range []mxid.UserID{alice, bob, carol} {
		m.set(t, user, everything...)
	}
	gone := []module.Session{{User: alice, Device: "TABLET"}, {User: bob, Device: ""}}
	want := map[mxid.UserID][]string{
		alice: {"phone", "tablet@mail", "none"},
		bob:   {"phone", "tablet", "second of the tablet"},
		dave:  nil,
	}
	for name, test := range map[string]struct {
		accounts func(*ledger) module.Accounts
		calls    int
	}{
		"asked one by one":    {func(l *ledger) module.Accounts { return l }, 9},
		"asked all at once":   {func(l *ledger) module.Accounts { return bulkLedger{ledger: l} }, 1},
		"without some answer": {func(l *ledger) module.Accounts { return bulkLedger{l, carol} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledger{gone: gone, broken: []mxid.UserID{carol}}
			got := hostOf(m.caller(), usualWith(test.accounts(l))).Pushers(t.Context(), []mxid.UserID{alice, bob, carol, dave})
			for user, want := range want {
				var pushkeys []string
				list := got[user].Value
				for _, p := range list.All() {
					pushkeys = append(pushkeys, p.Pushkey)
				}
				if got[user].Err != nil || !slices.Equal(pushkeys, want) {
					t.Errorf("%s: got %q, %v, want %q", user, pushkeys, got[user].Err, want)
				}
			}
			if failed := got[carol]; fault.KindOf(failed.Err) != fault.Unavailable || failed.Value.Len() != 0 {
				t.Errorf("of a user about whom nobody knows, got %d pushers, error %v", failed.Value.Len(), failed.Err)
			}
			if len(got) != 4 || l.calls != test.calls {
				t.Errorf("%d results after %d calls, want %d", len(got), l.calls, test.calls)
			}
		})
	}
	if got := m.held(alice); len(got) != len(everything) {
		t.Errorf("only %q are stored still", got)
	}
}

func TestWithoutPushersAccountsAreNotAsked(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	got := hostOf(newMemory().caller(), usualWith(bulkLedger{ledger: l})).Pushers(t.Context(), []mxid.UserID{alice, bob})
	if len(got) != 2 || l.calls != 0 {
		t.Errorf("%d results after %d calls", len(got), l.calls)
	}
}

// The device gets no notifications between the failed logout and the next login.
func TestTheNextLoginFinishesAFailedLogout(t *testing.T) {
	t.Parallel()
	m, l := newMemory(), &ledger{}
	m.set(t, alice, ownPusher("phone", pusher.HTTP, "PHONE"), ownPusher("tablet", pusher.HTTP, "TABLET"), ownPusher("new", pusher.HTTP, "NEW"))
	host := hostOf(m.caller(), usualWith(bulkLedger{ledger: l}))
	l.gone = []module.Session{{User: alice, Device: "TABLET"}}
	m.Before = func(string) error { return errDied }
	if err := host.RemoveDevicePushers(t.Context(), alice, "TABLET"); fault.KindOf(err) != fault.Unavailable {
		t.Fatalf("got error %v", err)
	}
	m.Before = func(string) error { return nil }
	if list := host.Pushers(t.Context(), []mxid.UserID{alice})[alice].Value; list.Len() != 2 {
		t.Errorf("%d pushers are to be notified", list.Len())
	}
	l.asked = nil
	// NEW has logged in since the host read the live devices.
	if err := host.RetainDevicePushers(t.Context(), alice, "PHONE"); err != nil {
		t.Fatal(err)
	}
	if got := m.held(alice); !slices.Equal(got, []string{"phone", "new"}) {
		t.Errorf("there are %q", got)
	}
	if len(l.asked) != 2 {
		t.Errorf("asked about %v, want those that are not said to be live", l.asked)
	}
	l.broken, l.gone = []mxid.UserID{alice}, []module.Session{{User: alice, Device: "NEW"}}
	if err := host.RetainDevicePushers(t.Context(), alice, "PHONE"); fault.KindOf(err) != fault.Unavailable || len(m.held(alice)) != 2 {
		t.Errorf("got error %v, there are %q", err, m.held(alice))
	}
}

// A device logs in again and sets its pusher while pushers of ended devices are removed.
func TestRetainingKeepsAPusherThatIsSetDuringTheCall(t *testing.T) {
	t.Parallel()
	for _, others := range []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers} {
		t.Run(string(others), func(t *testing.T) {
			t.Parallel()
			orders := 0
			synctest.Test(t, func(t *testing.T) {
				exhaust(func(choose func(int) int) {
					if !t.Failed() && playRetain(t, others, choose) {
						orders++
					}
				})
			})
			if orders < 10 {
				t.Errorf("played %d orders", orders)
			}
		})
	}
}

func playRetain(t *testing.T, others pusher.Others, choose func(int) int) (played bool) {
	t.Helper()
	m, gone := newMemory(), theTablet
	m.do(t, act{alice, takes})
	setAgain := func(ctx context.Context, c caller) error {
		if err := (accounts{c, &gone}).end(""); err != nil { // the tablet's absence
			return err
		}
		services := service.New(module.Stores{Pushers: c, Pushkeys: c.index()}, nil, usualWith(accounts{c, &gone}))
		return services.Pushers().Set(ctx, alice, pusherOf("0"), others)
	}
	retain := func(ctx context.Context, c caller) error {
		return hostOf(c, usualWith(accounts{c, &gone})).RetainDevicePushers(ctx, alice)
	}
	runs, played := play(t.Context(), m, choose, 0, func() { m.wantNoneTaken(t) }, setAgain, retain)
	if !played {
		return false
	}
	if err := errors.Join(runs[0].err, runs[1].err); err != nil {
		t.Error(err)
	}
	if got := m.owners(thePushkey); !slices.Equal(got, []mxid.UserID{alice}) {
		t.Errorf("owned by %v", got)
	}
	return true
}
