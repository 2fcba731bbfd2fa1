package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// The client settings of the demo host; see package redisurl.
const (
	demoDialTimeout = 1200 * time.Millisecond
	demoDialTries   = 2
	demoReplyLimit  = time.Second
	demoPoolLimit   = 500 * time.Millisecond
	demoTopologyAge = time.Second
)

func demoCluster(addrs []string) redis.UniversalClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                      addrs,
		DialTimeout:                demoDialTimeout,
		DialerRetries:              demoDialTries,
		ReadTimeout:                demoReplyLimit,
		WriteTimeout:               demoReplyLimit,
		PoolTimeout:                demoPoolLimit,
		ContextTimeoutEnabled:      true,
		ClusterStateReloadInterval: demoTopologyAge,
		MaintNotificationsConfig:   noMaintenance(),
	})
}

func demoSingle(addr string) redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr:                     addr,
		DialTimeout:              demoDialTimeout,
		DialerRetries:            demoDialTries,
		ReadTimeout:              demoReplyLimit,
		WriteTimeout:             demoReplyLimit,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: noMaintenance(),
	})
}

func demoSentinel(sentinel *redistest.SentinelServers) redis.UniversalClient {
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            sentinel.MasterName(),
		SentinelAddrs:         []string{sentinel.Addr()},
		DialTimeout:           demoDialTimeout,
		DialerRetries:         demoDialTries,
		ReadTimeout:           demoReplyLimit,
		WriteTimeout:          demoReplyLimit,
		ContextTimeoutEnabled: true,
	})
}

func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

type site struct {
	cluster *redistest.ClusterServers // nil for other servers
	victim  *redistest.Server         // has the data of the first users
	hosts   []*host
	users   [][]string // by the server that has their data at first

	// takeover returns when another server has replaced the victim.
	takeover func(ctx context.Context) error
}

func newSite(t *testing.T, newClient func() redis.UniversalClient, users [][]string) *site {
	t.Helper()
	s := &site{users: users}
	for range 2 {
		client := newClient()
		t.Cleanup(func() { client.Close() })
		s.hosts = append(s.hosts, startHost(t, client))
	}
	for _, user := range slices.Concat(users...) {
		s.hosts[0].ask(t, user, "GET /pushrules/")
		s.hosts[0].ask(t, user, "POST /pushers/set "+httpPusher("app", recoveryPushkey(alice)))
	}
	return s
}

const sharing = 4

func newRecoveryUser() string { return fmt.Sprintf("@recovery%d:example.org", users.Add(1)) }

func singleSite(t *testing.T) *site {
	t.Helper()
	server := redistest.Single(t, "--appendonly", "yes")
	s := newSite(t, func() redis.UniversalClient { return demoSingle(server.Addr()) }, someUsers())
	s.victim = server
	return s
}

func someUsers() [][]string {
	users := make([]string, sharing)
	for i := range users {
		users[i] = newRecoveryUser()
	}
	return [][]string{users}
}

func sentinelSite(t *testing.T) *site {
	t.Helper()
	sentinel := redistest.Sentinel(t)
	s := newSite(t, func() redis.UniversalClient { return demoSentinel(sentinel) }, someUsers())
	s.victim = sentinel.Master()
	watcher := redis.NewSentinelClient(&redis.Options{
		Addr: sentinel.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance(),
	})
	t.Cleanup(func() { watcher.Close() })
	s.takeover = func(ctx context.Context) error {
		for {
			master, err := watcher.GetMasterAddrByName(ctx, sentinel.MasterName()).Result()
			if err != nil || net.JoinHostPort(master[0], master[1]) == sentinel.Replica().Addr() {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return s
}

func clusterSite(args ...string) func(t *testing.T) *site {
	return func(t *testing.T) *site {
		t.Helper()
		cluster := redistest.Cluster(t, 3, 1, slices.Concat(args, []string{"--appendonly", "yes"})...)
		client := cluster.Client(t)
		users := usersOfEach(t, cluster, client)
		slot := client.ClusterKeySlot(t.Context(), eventKey(users[0][0])).Val()
		s := newSite(t, func() redis.UniversalClient { return demoCluster(cluster.Addrs()) }, users)
		s.cluster, s.victim = cluster, cluster.Masters()[0]
		s.takeover = func(ctx context.Context) error {
			_, err := cluster.WaitTakeover(ctx, int(slot), s.victim)
			return err
		}
		return s
	}
}

// usersOfEach returns users for each master. A user's claim to a pushkey is on the same master.
func usersOfEach(t *testing.T, cluster *redistest.ClusterServers, client *redis.ClusterClient) [][]string {
	t.Helper()
	masterOf := func(key string) int {
		node, err := client.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Index(cluster.Addrs(), node.Options().Addr)
	}
	users := make([][]string, len(cluster.Masters()))
	for found := 0; found < sharing*len(users); {
		user := newRecoveryUser()
		master := masterOf(eventKey(user))
		if len(users[master]) < sharing && masterOf(claimsKey("app", recoveryPushkey(user))) == master {
			users[master] = append(users[master], user)
			found++
		}
	}
	return users
}

func recoveryPushkey(user string) string { return "key of " + user }

func claimsKey(appID, pushkey string) string {
	return "pushkey:{" + string(pusher.Key{AppID: appID, Pushkey: pushkey}.Digest()) + "}"
}

type outcome struct {
	request string
	spared  bool // not for a user of the victim
	sent    time.Time
	took    time.Duration
	answer  string
}

func (s outcome) failed() bool { return !strings.HasPrefix(s.answer, "200 ") }

// traffic sends requests for the users of a site at a steady pace, however long earlier answers take.
type traffic struct {
	*site
	t     *testing.T
	end   context.CancelFunc
	sends sync.WaitGroup

	mu   sync.Mutex
	seen []outcome
}

const pace = 80 * time.Millisecond

func (s *site) startTraffic(t *testing.T) *traffic {
	ctx, end := context.WithCancel(t.Context())
	tr := &traffic{site: s, t: t, end: end}
	for server := range s.users {
		tr.sends.Go(func() { tr.drive(ctx, server) })
	}
	return tr
}

func (tr *traffic) stop() []outcome {
	tr.end()
	tr.sends.Wait()
	return tr.seen
}

func (tr *traffic) drive(ctx context.Context, server int) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			tr.sends.Go(func() { tr.send(server, n) })
		}
	}
}

// send sends the n-th request for a user of the server. Reads and changes of both stores alternate, and so do
// hosts and users.
func (tr *traffic) send(server, n int) {
	requests := []string{
		"GET /pushrules/",
		fmt.Sprintf(`PUT /pushrules/global/room/a {"actions":[{"set_tweak":"sound","value":"%d"}]}`, n),
		"GET /pushers",
		"POST /pushers/set " + strings.Replace(httpPusher("app", recoveryPushkey(alice)), "Phone", fmt.Sprint(n), 1),
	}
	request, turn := requests[n%len(requests)], n/len(requests)
	host, users := tr.hosts[turn%len(tr.hosts)], tr.users[server]
	user := users[turn/len(tr.hosts)%len(users)]
	sent := time.Now()
	got := host.ask(tr.t, user, request).String()
	path, _, _ := strings.Cut(request, " {")
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.seen = append(tr.seen, outcome{path, server > 0, sent, time.Since(sent), got})
}

func (tr *traffic) failedSince(sent time.Time) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.ContainsFunc(tr.seen, func(s outcome) bool { return s.failed() && s.sent.After(sent) })
}

type servers struct {
	start func(t *testing.T) *site

	// silence is the time after which the other servers replace a failed one.
	silence time.Duration

	// catchUp is the extra time that hosts may take after a long outage.
	catchUp time.Duration
}

// redistest configures these times.
var (
	wholeCluster = servers{clusterSite(), 2 * time.Second, time.Second}
	partsCluster = servers{clusterSite("--cluster-require-full-coverage", "no"), 2 * time.Second, time.Second}
	watched      = servers{sentinelSite, time.Second, 2 * time.Second} // the client dials once a second
	alone        = servers{singleSite, 0, 2 * time.Second}
)

type outage struct {
	name string
	of   servers

	// strike makes the servers fail. It returns when the servers work again, with the first time at which they
	// could have noticed the fault.
	strike func(s *site, t *testing.T) (struck time.Time)

	// spares is how long users of other masters notice nothing; 0 if the fault concerns all masters.
	spares time.Duration

	// repair brings the victim back if strike has not; nil for none.
	repair func(*redistest.Server)
}

const forGood = time.Hour

var outages = []outage{
	{"cluster: master killed", wholeCluster, (*site).kill, wholeCluster.silence, (*redistest.Server).Start},
	{"partly available cluster: master frozen", partsCluster, (*site).freeze, forGood, (*redistest.Server).Resume},
	{"cluster: failover", wholeCluster, (*site).failOver, forGood, nil},
	{"sentinel: master killed", watched, (*site).kill, 0, nil},
	{"single server: killed and started", alone, (*site).stopAndStart, 0, nil},
	{"single server: frozen for a while", alone, (*site).freezeForAWhile, 0, nil},
	{"cluster: master frozen", wholeCluster, (*site).freeze, wholeCluster.silence, (*redistest.Server).Resume},
	{"partly available cluster: master killed", partsCluster, (*site).kill, forGood, (*redistest.Server).Start},
	{"cluster: stopped and started", wholeCluster, (*site).stopAndStartAll, 0, nil},
	{"sentinel: master frozen", watched, (*site).freeze, 0, nil},
}

func (s *site) kill(t *testing.T) (struck time.Time) {
	struck = time.Now()
	s.victim.Stop()
	s.wait(t, s.takeover)
	return struck
}

func (s *site) freeze(t *testing.T) (struck time.Time) {
	struck = time.Now()
	s.victim.Pause()
	s.wait(t, s.takeover)
	return struck
}

func (s *site) wait(t *testing.T, until func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), never)
	defer cancel()
	if err := until(ctx); err != nil {
		t.Fatal(err)
	}
}

func (s *site) failOver(t *testing.T) (struck time.Time) {
	replicas, err := s.cluster.ReplicasOf(t.Context(), s.victim)
	if err != nil || len(replicas) != 1 {
		t.Fatalf("the victim has %d replicas: %v", len(replicas), err)
	}
	struck = time.Now()
	s.wait(t, func(ctx context.Context) error { return s.cluster.Failover(ctx, replicas[0]) })
	return struck
}

func (s *site) stopAndStartAll(t *testing.T) (struck time.Time) {
	atAll := func(do func(*redistest.Server)) {
		var group sync.WaitGroup
		for _, server := range s.cluster.Nodes() {
			group.Go(func() { do(server) })
		}
		group.Wait()
	}
	atAll((*redistest.Server).Stop)
	time.Sleep(down)
	atAll((*redistest.Server).Start)
	struck = time.Now()
	s.wait(t, s.cluster.WaitWhole)
	return struck
}

func (s *site) stopAndStart(*testing.T) (struck time.Time) {
	s.victim.Stop()
	time.Sleep(down)
	s.victim.Start()
	return time.Now()
}

func (s *site) freezeForAWhile(*testing.T) (struck time.Time) {
	s.victim.Pause()
	time.Sleep(handlers.DefaultConfig().RequestTimeout + calm)
	s.victim.Resume()
	return time.Now()
}

type recovery struct {
	began   time.Time // before the outage, while all requests succeed
	struck  time.Time
	served  time.Time // when the servers worked again
	settled time.Time // from then on all requests must succeed
	seen    []outcome
}

const (
	// comeBack is how long hosts may take after the silence to serve again.
	comeBack = 3 * time.Second

	// calm is how long all requests must succeed before and after.
	calm = 500 * time.Millisecond

	// down is how long servers are stopped: longer than clients retry.
	down = time.Second

	// slack is how late an answer may come on a busy machine.
	slack = 5 * time.Second

	// An answer that takes longWait has waited for the failed server: load alone never takes as long.
	longWait = slack
)

func (o outage) watch(t *testing.T, s *site) recovery {
	var r recovery
	traffic := s.startTraffic(t)
	defer traffic.stop()
	time.Sleep(calm)
	r.began = time.Now()
	r.struck = o.strike(s, t)
	r.served = time.Now()
	r.settled = r.struck.Add(o.of.silence + comeBack)
	if latest := r.served.Add(o.of.catchUp); latest.After(r.settled) {
		r.settled = latest
	}
	time.Sleep(time.Until(r.settled.Add(calm)))
	// Only a test of all outages needs an idle machine.
	for end := r.settled.Add(slack); *chaosTime == 0 && traffic.failedSince(r.settled) && time.Now().Before(end); {
		r.settled = time.Now()
		time.Sleep(calm)
	}
	r.seen = traffic.stop()
	return r
}

// check wants every request answered, with 200 outside the outage.
func (r recovery) check(t *testing.T, spares time.Duration) {
	t.Helper()
	limit := handlers.DefaultConfig().RequestTimeout + slack
	complaints := map[string][]outcome{}
	for _, s := range r.seen {
		answered := s.sent.Add(s.took)
		var complaint string
		switch {
		case s.failed() && s.answer != unavailable:
			complaint = "another answer than 200 or 503"
		case s.took > limit:
			complaint = "too late"
		case s.failed() && answered.Before(r.began):
			complaint = "failed before anything happened"
		case s.failed() && !s.sent.Before(r.settled):
			complaint = "failed when hosts should have come back"
		case s.spared && spares > 0 && answered.Before(r.struck.Add(spares)) && (s.failed() || s.took > longWait):
			complaint = "failed, or waited, though it was for a user of another master"
		default:
			continue
		}
		complaints[complaint] = append(complaints[complaint], s)
	}
	for complaint, by := range complaints {
		last := by[len(by)-1]
		t.Errorf("%d requests: %s; for example %s, sent %v after the strike and %v after the servers were back: got %s after %v",
			len(by), complaint, last.request, last.sent.Sub(r.struck), last.sent.Sub(r.served), last.answer, last.took)
	}
}

const columns = "seconds from the strike on\tservers back\tlast failure\tlast wait\tlongest\tfailed\tspared failed\tlast failure\n"

// row shows the times of an outage, counted from the moment of sending. A wait is longer than [calm].
func (r recovery) row(name string) string {
	last, failed, sent := map[bool]float64{}, map[bool]int{}, map[bool]int{}
	var wait float64
	var longest time.Duration
	for _, s := range r.seen {
		at := s.sent.Sub(r.struck).Seconds()
		sent[s.spared]++
		longest = max(longest, s.took)
		if s.failed() {
			failed[s.spared]++
			last[s.spared] = max(last[s.spared], at)
		}
		if s.took > calm {
			wait = max(wait, at)
		}
	}
	return fmt.Sprintf("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%d of %d\t%d of %d\t%.2f\n", name, r.served.Sub(r.struck).Seconds(),
		last[false], wait, longest.Seconds(), failed[false], sent[false], failed[true], sent[true], last[true])
}

// More outages run at once than there are processors, because they mostly wait.
func TestHostsComeBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	var group sync.WaitGroup
	cases := few(5, outages)
	rows := make([]string, len(cases))
	for i, o := range cases {
		group.Go(func() {
			t.Run(o.name, func(t *testing.T) {
				s := o.of.start(t)
				r := o.watch(t, s)
				r.check(t, o.spares)
				rows[i] = r.row(o.name)
				if o.repair != nil {
					s.wantUnnoticed(t, o.repair)
				}
			})
		})
	}
	group.Wait()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, columns, strings.Join(rows, ""))
	w.Flush()
	t.Logf("\n%s", &table)
}

// wantUnnoticed wants every request to succeed while the victim returns as a replica.
func (s *site) wantUnnoticed(t *testing.T, repair func(*redistest.Server)) {
	t.Helper()
	traffic := s.startTraffic(t)
	defer traffic.stop()
	repair(s.victim)
	s.wait(t, s.cluster.WaitWhole)
	failed := slices.DeleteFunc(traffic.stop(), func(s outcome) bool { return !s.failed() })
	if len(failed) > 0 {
		t.Errorf("while the victim returns, %d requests fail; for example %s: got %s after %v",
			len(failed), failed[0].request, failed[0].answer, failed[0].took)
	}
}
