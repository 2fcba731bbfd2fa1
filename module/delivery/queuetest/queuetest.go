// Package queuetest has the contract of [module.DeliveryQueue] as tests for any
// implementation; its API may change at any time.
//
//	func TestQueue(t *testing.T) {
//		database := newDatabase(t)
//		queuetest.Queue(t, func(*testing.T) module.DeliveryQueue { return myqueue.New(database) })
//	}
//
// Each call of the function returns the queue of another host on the same database, with
// a new connection. At first, the database has no queue. [Memory] is a queue for other
// tests.
package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	long     = time.Minute // longer than a test
	short    = 60 * time.Millisecond
	patience = 30 * time.Second

	maxUserBytes = 2000
)

// contract is a test of the contract, with its own hosts, user and gate.
type contract struct {
	*testing.T
	q, other module.DeliveryQueue
	user     mxid.UserID
	gate     string
}

// Queue runs the contract of [module.DeliveryQueue].
func Queue(t *testing.T, newQueue func(*testing.T) module.DeliveryQueue) {
	for n, test := range []struct {
		name string
		run  func(*contract)
	}{
		{"notifications are read as they were added", (*contract).readsAsAdded},
		{"a pusher that begins is claimed", (*contract).claimsAtOnce},
		{"some of many pushers that begin are claimed", (*contract).claimsSome},
		{"a repeated notification adds nothing", (*contract).addsOnce},
		{"pushers have their own places", (*contract).places},
		{"a claim lapses, and fences its host", (*contract).lapses},
		{"a call claims a pusher once", (*contract).claimsOnceACall},
		{"a claim is renewed", (*contract).renews},
		{"a claim is postponed", (*contract).postpones},
		{"urgent notifications and new pushers end a delay", (*contract).hastens},
		{"a notification does not wait for the delay of counts", (*contract).shortensDelays},
		{"counts are added once", (*contract).addsCountsOnce},
		{"texts are bounded", (*contract).boundsTexts},
		{"a look takes users of gates", (*contract).looks},
		{"users that fail have places of their own", (*contract).fails},
		{"users at closed gates have to wait", (*contract).passesClosedGates},
		{"many closed gates hide no open one", (*contract).findsOpenGates},
		{"gates that a host could not reach hide no other", (*contract).findsLastGatesLast},
		{"a pusher moves to another gate", (*contract).movesGates},
		{"a pusher that the user has no more is claimed", (*contract).findsUnknown},
		{"a claim is limited", (*contract).limits},
		{"a user rests after a claim, and one who fails has one", (*contract).rests},
		{"a claim of none gives a user back to the looks", (*contract).givesBack},
		{"what waits is dropped", (*contract).drops},
		{"a pusher stays in its place", (*contract).staysInPlace},
		{"a pusher is cut", (*contract).cuts},
		{"a pusher is cut alone", (*contract).cutsAlone},
		{"a log that was cut is not cut in the same way again", (*contract).cutsOnce},
		{"a log is forgotten", (*contract).forgets},
		{"what was sent last is kept", (*contract).keepsSent},
		{"what waits is summarized", (*contract).summarizes},
		{"many users and pushers are added at once", (*contract).addsMany},
		{"a context that has ended changes nothing", (*contract).endedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &contract{T: t, q: newQueue(t), other: newQueue(t), user: mxid.UserID(fmt.Sprintf("@user%d:example.org", n)), gate: fmt.Sprintf("https://x:443 app%02d", n)}
			c.persist(func() error { return c.q.Open(t.Context()) })
			c.persist(func() error { return c.other.Open(t.Context()) })
			test.run(c)
		})
	}
}

// persist repeats do until the queue has answered.
func (c *contract) persist(do func() error) {
	c.Helper()
	for deadline := time.Now().Add(patience); ; {
		err := do()
		if err == nil {
			return
		}
		if fault.KindOf(err) != fault.Unavailable || errors.Is(err, module.ErrFenced) || time.Now().After(deadline) {
			c.Fatal(fault.Details(err))
		}
	}
}

// ask repeats do until the queue has answered, and returns its answer.
func ask[T any](c *contract, do func() (T, error)) (answer T) {
	c.Helper()
	c.persist(func() (err error) {
		answer, err = do()
		return err
	})
	return answer
}

// wantFenced repeats do until the queue has answered.
func (c *contract) wantFenced(what string, do func() error) {
	c.Helper()
	c.persist(func() error {
		err := do()
		if fault.KindOf(err) == fault.Unavailable && !errors.Is(err, module.ErrFenced) {
			return err
		}
		if !errors.Is(err, module.ErrFenced) {
			c.Errorf("%s: got error %v, want %v", what, err, module.ErrFenced)
		}
		return nil
	})
}

func note(n int) module.Notification {
	return module.Notification{ID: fmt.Sprintf("%08d", n), Priority: module.HighPriority, Room: "room0000", Meta: fmt.Sprintf(`{"n":%d}`, n), Text: fmt.Sprint("text ", n)}
}

// newRequest is a request to append for the user's pushers.
func (c *contract) newRequest(n module.Notification, pushers ...string) module.AppendRequest {
	a := module.AppendRequest{User: c.user, Notification: n, Lease: long, MaxUserBytes: maxUserBytes}
	for _, pusher := range pushers {
		a.Pushers = append(a.Pushers, module.Recipient{Pusher: pusher, Gate: c.gate})
	}
	return a
}

func claiming(a module.AppendRequest) module.AppendRequest {
	a.MaxClaims = len(a.Pushers)
	for i := range a.Pushers {
		a.Pushers[i].Claim = true
	}
	return a
}

func (c *contract) append(q module.DeliveryQueue, a module.AppendRequest) module.Appended {
	c.Helper()
	return ask(c, func() (module.Appended, error) {
		result := q.Append(c.Context(), []module.AppendRequest{a})[0]
		return result.Value, result.Err
	})
}

func (c *contract) add(n module.Notification, pushers ...string) module.Appended {
	c.Helper()
	return c.append(c.q, c.newRequest(n, pushers...))
}

// begin claims pushers with a notification. After a lost reply, the claims are lost, too.
func (c *contract) begin(n module.Notification, lease time.Duration, pushers ...string) []*module.Claim {
	c.Helper()
	a := claiming(c.newRequest(n, pushers...))
	a.Lease = lease
	done := c.append(c.q, a)
	for _, claim := range done.Claims {
		if claim == nil {
			c.Fatalf("no claim: %+v", done)
		}
	}
	return done.Claims
}

func all(string) module.GateLimit { return module.GateLimit{Most: 1000, Failing: 1000} }

func (c *contract) look(q module.DeliveryQueue, limit int, lease time.Duration, gate func(string) module.GateLimit) module.Looked {
	c.Helper()
	return ask(c, func() (module.Looked, error) {
		return q.Look(c.Context(), module.Look{Limit: limit, Lease: lease, Gate: func(name string) module.GateLimit {
			if !strings.HasPrefix(name, c.gate) {
				return module.GateLimit{IsClosed: true}
			}
			return gate(name)
		}})
	})
}

// find looks until the user is due at the gate, and returns nil if that takes too long.
func (c *contract) find(q module.DeliveryQueue, within time.Duration) *module.DueUser {
	c.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		for _, u := range c.look(q, 1000, short, all).Users {
			if u.User == c.user && u.Gate == c.gate {
				return &u
			}
		}
		if time.Now().After(deadline) {
			return nil
		}
	}
}

func (c *contract) request(u module.DueUser, pushers ...string) module.ClaimRequest {
	r := module.ClaimRequest{DueUser: u, Lease: long, Limit: 16, Read: 1}
	for _, pusher := range pushers {
		r.Pushers = append(r.Pushers, module.PusherGate{Pusher: pusher, Gate: c.gate})
	}
	return r
}

func (c *contract) claimAll(q module.DeliveryQueue, r module.ClaimRequest) module.Claimed {
	c.Helper()
	return ask(c, func() (module.Claimed, error) {
		result := q.Claim(c.Context(), []module.ClaimRequest{r})[0]
		return result.Value, result.Err
	})
}

// claim claims one pusher when it is due.
func (c *contract) claim(q module.DeliveryQueue, pusher string) module.ClaimedPusher {
	c.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if u := c.find(q, patience); u != nil {
			if claimed := c.claimAll(q, c.request(*u, pusher)); len(claimed.Pushers) == 1 {
				return claimed.Pushers[0]
			}
		}
	}
	c.Fatalf("pusher %s cannot be claimed", pusher)
	panic("unreachable")
}

// wantBusy checks that no other host can claim the pushers.
func (c *contract) wantBusy(pushers ...string) {
	c.Helper()
	for deadline := time.Now().Add(2 * short); time.Now().Before(deadline); {
		if u := c.find(c.other, 0); u != nil {
			if claimed := c.claimAll(c.other, c.request(*u, pushers...)); len(claimed.Pushers) > 0 {
				c.Fatalf("claimed %+v", *claimed.Pushers[0].Claim)
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *contract) read(q module.DeliveryQueue, claim *module.Claim, limit int) (all []module.Notification, end int64) {
	c.Helper()
	c.persist(func() (err error) {
		all, end, err = q.Read(c.Context(), claim, limit)
		return err
	})
	return all, end
}

func metas(notifications []module.Notification) string {
	var names []string
	for _, n := range notifications {
		names = append(names, strings.TrimLeft(n.ID, "0"))
	}
	return strings.Join(names, " ")
}

func (c *contract) wantNext(q module.DeliveryQueue, claim *module.Claim, want string) {
	c.Helper()
	if got, _ := c.read(q, claim, 1000); metas(got) != want {
		c.Errorf("%s: got %q, want %q", claim.Pusher, metas(got), want)
	}
}

// complete moves a pusher to a number. The end may be fenced, if a reply was lost.
func (c *contract) complete(q module.DeliveryQueue, claim *module.Claim, d module.Done) (left int) {
	c.Helper()
	return ask(c, func() (int, error) {
		left, err := q.Complete(c.Context(), claim, d)
		if errors.Is(err, module.ErrFenced) && len(c.log().Pushers) == 0 {
			err = nil
		}
		return left, err
	})
}

// completing returns a completion that moves a pusher by some numbers.
func (c *contract) completing(claim *module.Claim, by int64) func() error {
	return func() error {
		_, err := c.q.Complete(c.Context(), claim, module.Done{To: claim.Number + by})
		return err
	}
}

// next completes a notification.
func (c *contract) next(q module.DeliveryQueue, claim *module.Claim) (left int) {
	c.Helper()
	all, end := c.read(q, claim, 2)
	if len(all) > 1 {
		end = all[1].Number
	}
	return c.complete(q, claim, module.Done{To: end})
}

func (c *contract) postpone(q module.DeliveryQueue, claim *module.Claim, delay time.Duration, trouble module.Trouble, fails bool) {
	c.Helper()
	c.persist(func() error { return q.Postpone(c.Context(), claim, delay, trouble, fails) })
}

func (c *contract) log() module.Log {
	c.Helper()
	return ask(c, func() (module.Log, error) { return c.q.Log(c.Context(), c.user) })
}

// cut takes notifications from pushers; lost has the names of them, as metas has, by pusher.
func (c *contract) cut(lost map[string]string) {
	c.Helper()
	for done := false; !done; {
		log := c.log()
		for i, p := range log.Pushers {
			gone := strings.Fields(lost[p.Pusher])
			log.Pushers[i].Waiting = slices.DeleteFunc(slices.Clone(p.Waiting), func(number int64) bool {
				at := slices.IndexFunc(log.Notifications, func(n module.Notification) bool { return n.Number == number })
				return slices.Contains(gone, metas(log.Notifications[at:at+1]))
			})
		}
		done = ask(c, func() (bool, error) { return c.q.Cut(c.Context(), c.user, log) })
	}
}

// span names notifications from a number to another one.
func span(from, to int) string {
	var names []string
	for n := from; n <= to; n++ {
		names = append(names, fmt.Sprint(n))
	}
	return strings.Join(names, " ")
}

// ended is a context that has ended.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
