package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func demoCluster(addrs []string) redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      addrs,
		DialTimeout:                hosttest.DemoDialTimeout,
		DialerRetries:              hosttest.DemoDialTries,
		ReadTimeout:                hosttest.DemoReplyLimit,
		WriteTimeout:               hosttest.DemoReplyLimit,
		PoolTimeout:                hosttest.DemoPoolLimit,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: hosttest.DemoTopologyAge,
		MaintNotificationsConfig:   hosttest.NoMaintenance(),
	})
}

func demoSingle(addr string) redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr:                     addr,
		DialTimeout:              hosttest.DemoDialTimeout,
		DialerRetries:            hosttest.DemoDialTries,
		ReadTimeout:              hosttest.DemoReplyLimit,
		WriteTimeout:             hosttest.DemoReplyLimit,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: hosttest.NoMaintenance(),
	})
}

func demoSentinel(sentinel *redistest.SentinelServers) redis.UniversalClient {
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            sentinel.MasterName(),
		SentinelAddrs:         []string{sentinel.Addr()},
		DialTimeout:           hosttest.DemoDialTimeout,
		DialerRetries:         hosttest.DemoDialTries,
		ReadTimeout:           hosttest.DemoReplyLimit,
		WriteTimeout:          hosttest.DemoReplyLimit,
		ContextTimeoutEnabled: true,
	})
}

// The time after which the other servers replace a failed one, as redistest configures it.
const (
	clusterSilence  = 2 * time.Second
	sentinelSilence = time.Second
)

const forGood = time.Hour

// A host serves again within [comeBack] of the silence after which the other servers replace a failed one. Until then
// it answers 503, and users of other masters notice nothing.
func TestHostsComeBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	file := []string{"--appendonly", "yes"}
	whole, parts := clusterOf3(1, file...), clusterOf3(1, append(file, "--cluster-require-full-coverage", "no")...)
	single := singleServer(file...)
	inWhole := traffic{silence: clusterSilence, catchUp: time.Second}
	sparingBriefly := traffic{silence: clusterSilence, catchUp: time.Second, spares: clusterSilence}
	sparing := traffic{silence: clusterSilence, catchUp: time.Second, spares: forGood}
	watched := traffic{silence: sentinelSilence, catchUp: 2 * time.Second} // the client dials once a second
	alone := traffic{catchUp: 2 * time.Second}
	play(t, few(5, []row{
		{name: "cluster: master killed", servers: whole, work: sparingBriefly, faults: []chaosFault{masterGone}},
		{name: "partly available cluster: master frozen", servers: parts, work: sparing, faults: []chaosFault{masterHangs}},
		{name: "cluster: failover", servers: whole, work: sparing, faults: []chaosFault{failoverByHand}},
		{name: "sentinel: master killed", servers: withSentinel, work: watched, faults: []chaosFault{masterGone}},
		{name: "single server: killed and started", servers: single, work: alone, faults: []chaosFault{allRestarted}},
		{name: "single server: frozen for a while", servers: single, work: alone, faults: []chaosFault{serverFrozenTooLong}},
		{name: "cluster: master frozen", servers: whole, work: sparingBriefly, faults: []chaosFault{masterHangs}},
		{name: "partly available cluster: master killed", servers: parts, work: sparing, faults: []chaosFault{masterGone}},
		{name: "cluster: stopped and started", servers: whole, work: inWhole, faults: []chaosFault{allRestarted}},
		{name: "sentinel: master frozen", servers: withSentinel, work: watched, faults: []chaosFault{masterHangs}},
	})...)
}

const (
	// comeBack is how long hosts may take after the silence to serve again.
	comeBack = 3 * time.Second

	// calm is how long all requests must succeed before and after.
	calm = 500 * time.Millisecond

	// An answer that takes longWait has waited for the failed server: load alone never takes as long.
	longWait = hosttest.Slack

	// pace is the time between two requests to users of one server.
	pace = 80 * time.Millisecond

	// sharing is the number of users of a server.
	sharing = 4
)

// traffic is requests for the users of each server at a steady pace, however long earlier answers take.
type traffic struct {
	silence time.Duration // after which the other servers replace a failed one
	catchUp time.Duration // the extra time that hosts may take after a long outage
	spares  time.Duration // how long users of other masters notice nothing; 0 if the fault concerns all masters
}

func (tr traffic) start(w *world) func(context.Context, *strike) (history, error) {
	var hosts []*hosttest.Host
	for range 2 {
		client := w.demoClient()
		w.t.Cleanup(func() { client.Close() })
		hosts = append(hosts, hosttest.StartHost(w.t, client))
	}
	return func(ctx context.Context, s *strike) (history, error) {
		s.around = calm
		h := &trafficHistory{traffic: tr, s: s, hosts: hosts, users: map[*redistest.Server][]*place{}}
		return h, h.addUsers(ctx)
	}
}

func (s *servers) demoClient() redis.UniversalClient {
	switch {
	case s.cluster != nil:
		return demoCluster(s.addrs())
	case s.sentinel != nil:
		return demoSentinel(s.sentinel)
	}
	return demoSingle(s.nodes[0].Addr())
}

type trafficHistory struct {
	traffic
	s       *strike
	hosts   []*hosttest.Host
	users   map[*redistest.Server][]*place // by the server that has their data at first
	settled time.Time                      // from then on all requests must succeed

	mu   sync.Mutex
	seen []outcome
}

type outcome struct {
	request string
	user    *place
	sent    time.Time
	took    time.Duration
	answer  string
}

func (o outcome) failed() bool { return !strings.HasPrefix(o.answer, "200 ") }

func recoveryPushkey(user string) string { return "key of " + user }

// keysOfUser are those that requests for a user need.
func keysOfUser(user string) []string {
	return []string{hosttest.EventKey(user), hosttest.PushersKey(user), stored.Keys{}.Pushkey(pusher.Key{AppID: "app", Pushkey: recoveryPushkey(user)}.Digest())}
}

func (h *trafficHistory) addUsers(ctx context.Context) (err error) {
	h.s.places, err = h.s.placesOfEach(ctx, sharing, keysOfUser)
	for _, p := range h.s.places {
		h.users[p.home] = append(h.users[p.home], p)
		h.hosts[0].Ask(h.s.t, p.name, "GET /pushrules/")
		h.hosts[0].Ask(h.s.t, p.name, "POST /pushers/set "+hosttest.HTTPPusher("app", recoveryPushkey(hosttest.Alice)))
	}
	return err
}

func (h *trafficHistory) work(ctx context.Context) {
	var sends sync.WaitGroup
	defer sends.Wait()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, users := range h.users {
				sends.Go(func() { h.send(users, n) })
			}
		}
	}
}

// send sends the n-th request for some users. Reads and changes of both stores alternate, and so do hosts and users.
func (h *trafficHistory) send(users []*place, n int) {
	requests := []string{
		"GET /pushrules/",
		fmt.Sprintf(`PUT /pushrules/global/room/a {"actions":[{"set_tweak":"sound","value":"%d"}]}`, n),
		"GET /pushers",
		"POST /pushers/set " + strings.Replace(hosttest.HTTPPusher("app", recoveryPushkey(hosttest.Alice)), "Phone", fmt.Sprint(n), 1),
	}
	request, turn := requests[n%len(requests)], n/len(requests)
	host, user := h.hosts[turn%len(h.hosts)], users[turn/len(h.hosts)%len(users)]
	sent := time.Now()
	got := host.Ask(h.s.t, user.name, request).String()
	path, _, _ := strings.Cut(request, " {")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, outcome{path, user, sent, time.Since(sent), got})
}

func (h *trafficHistory) failedSince(sent time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.seen, func(o outcome) bool { return o.failed() && o.sent.After(sent) })
}

// waitServed waits after the fault until hosts should have come back, and a little longer.
func (h *trafficHistory) waitServed(ctx context.Context) error {
	if h.s.over == 0 {
		return nil
	}
	h.settled = h.s.at(max(h.s.noticed+int64(h.silence+comeBack), h.s.over+int64(h.catchUp)))
	if err := sleep(ctx, time.Until(h.settled.Add(calm))); err != nil {
		return err
	}
	// Only a test of all outages needs an idle machine.
	for end := h.settled.Add(hosttest.Slack); *chaosTime == 0 && h.failedSince(h.settled) && time.Now().Before(end); {
		h.settled = time.Now()
		if err := sleep(ctx, calm); err != nil {
			return err
		}
	}
	return nil
}

// judge wants every request answered, with 200 outside the outage.
func (h *trafficHistory) judge(_ context.Context, s *strike) error {
	limit := handlers.DefaultConfig().RequestTimeout + hosttest.Slack
	began, noticed, over := s.at(s.struck), s.at(s.noticed), s.at(s.over)
	complaints := map[string][]outcome{}
	var failed, sent [2]int // of users of the victim, and of others
	var last, longest time.Duration
	for _, o := range h.seen {
		answered, spared := o.sent.Add(o.took), 0
		if !slices.Contains(s.hit, o.user) {
			spared = 1
		}
		sent[spared]++
		longest = max(longest, o.took)
		if o.failed() {
			failed[spared]++
			last = max(last, o.sent.Sub(noticed))
		}
		var complaint string
		switch {
		case o.failed() && o.answer != hosttest.Unavailable:
			complaint = "another answer than 200 or 503"
		case o.took > limit:
			complaint = "too late"
		case o.failed() && answered.Before(began):
			complaint = "failed before anything happened"
		case o.failed() && !o.sent.Before(h.settled):
			complaint = "failed when hosts should have come back, or while the victim returned"
		case spared == 1 && h.spares > 0 && answered.Before(noticed.Add(h.spares)) && (o.failed() || o.took > longWait):
			complaint = "failed, or waited, though it was for a user of another master"
		default:
			continue
		}
		complaints[complaint] = append(complaints[complaint], o)
	}
	for complaint, by := range complaints {
		o := by[len(by)-1]
		s.t.Errorf("%d requests: %s; for example %s, sent %v after the strike and %v after the servers were back: got %s after %v",
			len(by), complaint, o.request, o.sent.Sub(noticed), o.sent.Sub(over), o.answer, o.took)
	}
	s.t.Logf("servers back %v after the strike, last failure after %v, longest answer %v; %d of %d requests failed, and %d of %d for users of other masters",
		over.Sub(noticed), last, longest, failed[0], sent[0], failed[1], sent[1])
	return nil
}
