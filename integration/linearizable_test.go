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

// workload is a set of concurrent clients. The seed decides their requests; the timing is random.
type workload struct {
	hosts   []*host
	users   []string
	clients int // of each user
	length  int // requests of each client
	next    func(*randomClient) request
	seed    uint64
	hangUps int // changes of each user whose answers the client does not await
}

// record runs all clients and returns the history. Its times are positions in the order of events, as the clients
// see them.
func (w workload) record() []porcupine.Operation {
	var clock atomic.Int64
	var working sync.WaitGroup
	start := make(chan struct{})
	histories := make([][]porcupine.Operation, len(w.users)*w.clients)
	for i := range histories {
		random := rand.New(rand.NewPCG(w.seed, uint64(i)))
		a := &randomClient{user: w.users[i%len(w.users)], number: i / len(w.users), random: random}
		working.Go(func() {
			<-start
			histories[i] = w.play(a, i, &clock)
		})
	}
	close(start)
	working.Wait()
	return withEnds(slices.Concat(histories...), len(histories), clock.Load()+1)
}

func (w workload) play(a *randomClient, client int, clock *atomic.Int64) []porcupine.Operation {
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

// send returns the answer to a request, or [unknown] without one.
func (h *host) send(ctx context.Context, r request) string {
	got, err := h.try(ctx, r.user, r.method, v3+r.path, r.body)
	if err != nil || got.String() == unavailable {
		return unknown
	}
	return got.String()
}

func untilSent(ctx context.Context) context.Context {
	ctx, hangUp := context.WithCancel(ctx)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() },
	})
}

// withEnds makes requests without an answer last until the end of the history, each as a separate client, since
// its client has continued.
func withEnds(history []porcupine.Operation, clients int, end int64) []porcupine.Operation {
	for i := range history {
		if history[i].Output == unknown {
			history[i].ClientId, history[i].Return = clients, end
			clients++
		}
	}
	return history
}

// wantLinearizable wants the history to be possible with all requests of a user handled one at a time.
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

// showIllegal logs and draws the history of each user that is not linearizable.
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

func listing(history []porcupine.Operation) string {
	var b strings.Builder
	byCall := func(x, y porcupine.Operation) int { return cmp.Compare(x.Call, y.Call) }
	for _, o := range slices.SortedFunc(slices.Values(history), byCall) {
		fmt.Fprintf(&b, "%3d %5d-%5d %s\n", o.ClientId, o.Call, o.Return, brief(o.Input.(request), o.Output.(string)))
	}
	return b.String()
}

// draw writes a picture of a check to a file, which outlives the test, and returns its path.
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

// mixes are the kinds of requests. Push rules and pushers share nothing, so each kind has its history.
var mixes = []struct {
	name string
	next func(*randomClient) request
}{
	{"push rules", nextForRules},
	{"pushers", nextForPushers},
}

// withLargeEvents sets the size from which the store treats events as large.
func withLargeEvents(size int) fx.Option {
	return fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.LargeValueBytes = size; return c })
}

// The hosts lose replies of Redis and must find out the outcome. Clients lose replies of the hosts.
func TestLinearizableHistoriesOfTwoHosts(t *testing.T) {
	t.Parallel()
	eachLossy(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		var hosts []*host
		for _, large := range []int{1, rediscommit.DefaultConfig().LargeValueBytes} { // small and large events have different write paths
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

// rounds is how often each mix starts with users without stored data, because most faults show there.
const rounds = 5

func wantLinearizableRound(t *testing.T, hosts []*host, next func(*randomClient) request, round int) {
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

// seedOf returns a seed for each history, the same in every run.
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
