package integration

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
)

// workload is what many clients of some users do at the same time. Which
// requests they make is the seed's to decide; how these meet is not.
type workload struct {
	hosts   []*host
	users   []string
	clients int // of each user
	length  int // requests of each client
	next    func(*actor) request
	seed    uint64
	hangUps int // changes of each user that are left without waiting for their answers
}

// record has all the clients at work and returns the history. Its times are
// places in the order of events, as seen by the clients.
func (w workload) record() []porcupine.Operation {
	var clock atomic.Int64
	var working sync.WaitGroup
	start := make(chan struct{})
	histories := make([][]porcupine.Operation, len(w.users)*w.clients)
	for i := range histories {
		random := rand.New(rand.NewPCG(w.seed, uint64(i)))
		a := &actor{user: w.users[i%len(w.users)], number: i / len(w.users), random: random}
		working.Go(func() {
			<-start
			histories[i] = w.play(a, i, &clock)
		})
	}
	close(start)
	working.Wait()
	return withEnds(slices.Concat(histories...), len(histories), clock.Load()+1)
}

// play sends the requests of one client, one after the other.
func (w workload) play(a *actor, client int, clock *atomic.Int64) []porcupine.Operation {
	history := make([]porcupine.Operation, 0, w.length)
	hangsUp := a.number < w.hangUps
	for range w.length {
		r := w.next(a)
		a.sent++
		ctx := context.Background()
		if hangsUp && a.sent > 5*(a.number+1) && r.method != http.MethodGet {
			ctx, hangsUp = untilSent(ctx), false
		}
		h := one(a, w.hosts...)
		operation := porcupine.Operation{ClientId: client, Input: r, Call: clock.Add(1)}
		operation.Output = h.send(ctx, r)
		operation.Return = clock.Add(1)
		history = append(history, operation)
	}
	return history
}

// send returns the answer to a request, [unknown] if none tells whether the
// request has taken effect.
func (h *host) send(ctx context.Context, r request) string {
	got, err := h.try(ctx, r.user, r.method, v3+r.path, r.body)
	if err != nil || got.String() == unavailable {
		return unknown
	}
	return got.String()
}

// untilSent is a context that ends as soon as a request is sent.
func untilSent(ctx context.Context) context.Context {
	ctx, hangUp := context.WithCancel(ctx)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() },
	})
}

// withEnds lets requests without an answer last until the end of the history,
// each as a client of its own, since the one that sent it has gone on.
func withEnds(history []porcupine.Operation, clients int, end int64) []porcupine.Operation {
	for i := range history {
		if history[i].Output == unknown {
			history[i].ClientId, history[i].Return = clients, end
			clients++
		}
	}
	return history
}

// wantLinearizable wants what clients saw to be what they could have seen with
// all the requests of a user handled one at a time.
func wantLinearizable(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	switch check(history) {
	case porcupine.Ok:
	case porcupine.Illegal:
		t.Error("the history is not linearizable")
		showIllegal(t, history)
	default:
		t.Errorf("the check of %d requests did not end within %v", len(history), checkLimit)
	}
}

// showIllegal logs the history of each user for whom it is not linearizable,
// in order of the calls, and draws it.
func showIllegal(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	for _, part := range partition(history) {
		result, info := porcupine.CheckOperationsVerbose(oneAtATime(), part, checkLimit)
		if result == porcupine.Ok {
			continue
		}
		user := part[0].Input.(request).user
		t.Logf("%s: %s, drawn in %s\n%s", user, result, draw(t, info), listing(part))
	}
}

// listing has a line for each request: who sent it, when it was sent and
// answered, and what.
func listing(history []porcupine.Operation) string {
	var b strings.Builder
	byCall := func(x, y porcupine.Operation) int { return cmp.Compare(x.Call, y.Call) }
	for _, o := range slices.SortedFunc(slices.Values(history), byCall) {
		fmt.Fprintf(&b, "%3d %5d-%5d %s\n", o.ClientId, o.Call, o.Return, brief(o.Input.(request), o.Output.(string)))
	}
	return b.String()
}

// draw makes a page of a check and returns its path; it outlives the test.
func draw(t *testing.T, info porcupine.LinearizationInfo) string {
	t.Helper()
	page, err := os.CreateTemp("", "linearizable-*.html")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := porcupine.Visualize(oneAtATime(), info, page); err != nil {
		t.Error(err)
	}
	return page.Name()
}

// mixes are the kinds of requests that a history is made of. Push rules and
// pushers have nothing in common, so that each has a history of its own.
var mixes = []struct {
	name string
	next func(*actor) request
}{
	{"push rules", nextForRules},
	{"pushers", nextForPushers},
}

// withLargeEvents has the events from a size on replaced as large ones are.
func withLargeEvents(size int) fx.Option {
	return fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.LargeValueBytes = size; return c })
}

// TestWhatClientsOfTwoHostsSeeIsLinearizable loses replies on both sides:
// those of Redis to the hosts, which must find out what became of the change,
// and those of the hosts to clients.
func TestWhatClientsOfTwoHostsSeeIsLinearizable(t *testing.T) {
	t.Parallel()
	eachLossy(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		var hosts []*host
		for _, large := range []int{1, rediscommit.DefaultConfig().LargeValueBytes} { // they write in different ways
			hosts = append(hosts, startHost(t, newClient(t), withLargeEvents(large)))
		}
		for _, mix := range mixes {
			t.Run(mix.name, func(t *testing.T) {
				t.Parallel()
				for round := 0; round < rounds && !t.Failed(); round++ {
					wantLinearizableRound(t, hosts, mix.next, round)
				}
			})
		}
	})
}

// rounds is how often each mix starts with users who have nothing stored, which
// is when most can go wrong.
const rounds = 5

// wantLinearizableRound records and checks one history of three new users.
func wantLinearizableRound(t *testing.T, hosts []*host, next func(*actor) request, round int) {
	t.Helper()
	name := fmt.Sprint(t.Name(), round)
	var users []string
	for _, user := range []string{"a", "b", "c"} {
		users = append(users, fmt.Sprintf("@%s%d:example.org", user, round))
	}
	history := workload{
		hosts: hosts, users: users, clients: 4, length: 32, hangUps: 3, next: next, seed: seedOf(name),
	}.record()
	t.Logf("seed %d: %d requests, %d without an answer", seedOf(name), len(history), unanswered(history))
	if unanswered(history) > len(history)/10 {
		t.Error("too few answers to show anything")
	}
	wantLinearizable(t, history)
}

// seedOf gives each history requests of its own, the same ones every time.
func seedOf(name string) uint64 {
	hash := fnv.New64a()
	io.WriteString(hash, name)
	return hash.Sum64()
}

func unanswered(history []porcupine.Operation) int {
	n := 0
	for _, operation := range history {
		if operation.Output == unknown {
			n++
		}
	}
	return n
}
