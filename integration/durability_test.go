package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/rulestore"
)

type masterFailure struct {
	master *redistest.Server
	strike func()                   // runs before the kill, unless nil
	revive func() *redistest.Server // runs after the kill and returns the server with the data
}

func failover(t *testing.T) masterFailure {
	t.Helper()
	master, replica := redistest.Single(t, "--repl-diskless-sync", "no"), redistest.Single(t)
	follow := func(host, port string) {
		t.Helper()
		if err := replica.Client(t).Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
			t.Fatal(err)
		}
	}
	host, port, _ := net.SplitHostPort(master.Addr())
	follow(host, port)
	awaitReplica(t, master)
	return masterFailure{master: master, revive: func() *redistest.Server {
		replica.Resume()
		follow("NO", "ONE")
		return replica
	}, strike: func() {
		if err := cutOff(t.Context(), master, replica); err != nil {
			t.Error(err)
		}
	}}
}

// awaitReplica waits until a replica confirms a write. The first wait may return too early: a master without a
// replica counts no bytes.
func awaitReplica(t *testing.T, master *redistest.Server) {
	t.Helper()
	conn := master.Client(t).Conn()
	defer conn.Close()
	for n := range 2 {
		conn.Set(t.Context(), "first", n, 0)
		if n, err := conn.Wait(t.Context(), 1, 4*time.Second).Result(); n != 1 {
			t.Fatalf("the replica does not follow: %v", err)
		}
	}
}

func restart(t *testing.T) masterFailure {
	t.Helper()
	master := redistest.Single(t, "--appendonly", "yes", "--appendfsync", "everysec")
	return masterFailure{master: master, revive: func() *redistest.Server {
		master.Start()
		return master
	}}
}

// hasWAITAOF reports whether the servers have the command, which came with Redis 7.2.
func hasWAITAOF(t *testing.T) bool {
	t.Helper()
	commands, err := redistest.Single(t).Client(t).Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, found := commands["waitaof"]
	return found
}

type change struct {
	user, method, path, body string
	trace                    string // in the stored data
}

const durabilityUsers = 8

func newChange(writer, n int) change {
	user, id := fmt.Sprintf("@durable%d:example.org", writer%durabilityUsers), fmt.Sprintf("w%dn%d", writer, n)
	if n%2 == 0 {
		return change{user, http.MethodPut, "/pushrules/global/room/" + id, `{"actions":[]}`, `"rule_id":"` + id + `"`}
	}
	return change{user, http.MethodPost, "/pushers/set", httpPusher("app", id), `"pushkey":"` + id + `"`}
}

type ledger struct {
	mu           sync.Mutex
	acknowledged []change
	refused      int  // with 503
	late         int  // sent after the fault, and answered
	unsent       int  // of these, acknowledged: no replica has them
	struck       bool // the fault has occurred
	over         bool // the writers shall stop
}

func (l *ledger) next() (struck, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.struck, l.over
}

func (l *ledger) enter(c change, status int, late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if late {
		l.late++
	}
	if status != http.StatusOK {
		l.refused++
		return
	}
	l.acknowledged = append(l.acknowledged, c)
	if late {
		l.unsent++
	}
}

func (l *ledger) wait(t *testing.T, what string, is func(*ledger) bool) {
	t.Helper()
	for deadline := time.Now().Add(never); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		done := is(l)
		l.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", never, what)
		}
	}
}

func (l *ledger) set(change func(*ledger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// write makes the changes of one writer as fast as answers come.
func (l *ledger) write(t *testing.T, h *host, writer int) {
	for n := 0; ; n++ {
		late, over := l.next()
		if over {
			return
		}
		c := newChange(writer, n)
		a, err := h.try(t.Context(), c.user, c.method, v3+c.path, c.body)
		if err != nil || a.status != http.StatusOK && a.status != http.StatusServiceUnavailable {
			t.Errorf("%s %s: got %s, %v", c.method, c.path, a, err)
			return
		}
		l.enter(c, a.status, late)
	}
}

func (l *ledger) countLost(h *host) int {
	stored := map[string]string{}
	for n := range durabilityUsers {
		user := newChange(n, 0).user
		for _, path := range []string{"/pushrules/global/", "/pushers"} {
			a := h.do(user, http.MethodGet, v3+path, "")
			if a.status != http.StatusOK {
				h.t.Errorf("%s: got %s", path, a)
			}
			stored[user] += a.body
		}
	}
	lost := 0
	for _, c := range l.acknowledged {
		if !strings.Contains(stored[c.user], c.trace) {
			lost++
		}
	}
	return lost
}

type failureRounds struct {
	durability rediscommit.Durability
	fault      string
	prepare    func(*testing.T) masterFailure
	writers    int
	warmUp     int  // acknowledged changes before the fault
	loses      bool // acknowledged changes, in every round
}

type tally struct{ rounds, acknowledged, refused, lost int }

func (c failureRounds) name() string { return c.durability.String() + "/" + c.fault }

func (c failureRounds) config(cfg pushfx.Config) pushfx.Config {
	cfg.Redis.Durability = c.durability
	cfg.PusherPolicy.MaxPushers = 1000
	return cfg
}

// hostOf starts a host whose client fails as soon as its server does.
func (c failureRounds) hostOf(t *testing.T, server *redistest.Server) *host {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
	})
	t.Cleanup(func() { client.Close() })
	return startHost(t, client, fx.Decorate(c.config))
}

func (c failureRounds) round(t *testing.T) tally {
	t.Helper()
	f := c.prepare(t)
	h := c.hostOf(t, f.master)
	var working sync.WaitGroup
	for n := range durabilityUsers {
		working.Go(func() { h.ask(t, newChange(n, 0).user, "GET /pushrules/") })
	}
	working.Wait()
	var l ledger
	for writer := range c.writers {
		working.Go(func() { l.write(t, h, writer) })
	}
	defer working.Wait()
	defer l.set(func(l *ledger) { l.over = true })
	l.wait(t, "acknowledged changes", func(l *ledger) bool { return len(l.acknowledged) >= c.warmUp })
	if f.strike != nil {
		f.strike()
		l.set(func(l *ledger) { l.struck = true })
		l.wait(t, "answers after the fault", func(l *ledger) bool { return l.late >= c.writers })
	}
	f.master.Stop()
	l.set(func(l *ledger) { l.over = true })
	working.Wait()
	got := tally{1, len(l.acknowledged), l.refused, l.countLost(c.hostOf(t, f.revive()))}
	c.judge(t, got, l.unsent)
	return got
}

func (c failureRounds) judge(t *testing.T, got tally, unsent int) {
	t.Helper()
	switch {
	case c.durability != rediscommit.Durability{}:
		if got.lost > 0 || unsent > 0 {
			t.Errorf("%d changes acknowledged, %d of them on no replica, %d lost", got.acknowledged, unsent, got.lost)
		}
	case c.loses:
		if unsent == 0 || got.lost < unsent {
			t.Errorf("%d changes lost, want the %d that no replica has: otherwise this test cannot find a loss", got.lost, unsent)
		}
	}
}

func fallCourses(t *testing.T) []failureRounds {
	t.Helper()
	none := rediscommit.Durability{}
	replica := rediscommit.Durability{Replicas: 1, Timeout: 50 * time.Millisecond}
	courses := []failureRounds{
		{none, "replica cut off, master killed, replica promoted", failover, 8, 100, true},
		{replica, "replica cut off, master killed, replica promoted", failover, 8, 100, false},
	}
	if hasWAITAOF(t) {
		file := rediscommit.Durability{AOF: true, Timeout: 2 * time.Second}
		courses = append(courses, failureRounds{file, "master with appendonly killed, restarted", restart, 40, 40, false})
	}
	return courses
}

func TestDurabilityKeepsAcknowledgedChangesOfAKilledMaster(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	rounds := few(1, []int{1, 2, 3})
	courses := fallCourses(t)
	tallies := make([]tally, len(courses))
	t.Run("rounds", func(t *testing.T) {
		for i, c := range courses {
			t.Run(c.name(), func(t *testing.T) {
				t.Parallel()
				for range rounds {
					got := c.round(t)
					tallies[i].rounds++
					tallies[i].acknowledged += got.acknowledged
					tallies[i].refused += got.refused
					tallies[i].lost += got.lost
				}
			})
		}
	})
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "durability\tfault\trounds\tacknowledged\tanswered 503\tacknowledged but lost")
	for i, c := range courses {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\n",
			c.durability, c.fault, tallies[i].rounds, tallies[i].acknowledged, tallies[i].refused, tallies[i].lost)
	}
	w.Flush()
	t.Logf("\n%s", table.String())
}

func withDurability(d rediscommit.Durability) fx.Option {
	return fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.Durability = d; return c })
}

func TestDurabilityWithoutServerSupportStopsTheStart(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	reason := "unknown command"
	if hasWAITAOF(t) {
		reason = "appendonly is disabled"
	}
	server := redistest.Single(t)
	err := startable(server.Client(t), withDurability(rediscommit.Durability{AOF: true, Timeout: time.Second})).Start(t.Context())
	for _, part := range []string{"pushfx: ", "Durability aof needs Redis 7.2 or later with appendonly yes", server.Addr(), reason} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %q in it", err, part)
		}
	}
}

type latencies []time.Duration

func (l latencies) String() string {
	return fmt.Sprintf("%d answers, median %v, 99%% within %v, longest %v", len(l), l[len(l)/2], l[len(l)*99/100], l[len(l)-1])
}

func readUntil(h *host, done <-chan struct{}) latencies {
	const readers = 4
	took := make([]latencies, readers)
	var reading sync.WaitGroup
	for n := range readers {
		reading.Go(func() {
			for user := fmt.Sprintf("@reader%d:example.org", n); ; time.Sleep(2 * time.Millisecond) {
				began := time.Now()
				a, err := h.try(context.Background(), user, http.MethodGet, v3+"/pushrules/", "")
				took[n] = append(took[n], time.Since(began))
				if err != nil || a.status != http.StatusOK {
					h.t.Errorf("%s: got %s, %v", user, a, err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	reading.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all
}

func TestUnreachedDurabilityGives503InTimeWhileReadsContinue(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const (
		many     = 50
		limit    = 3 * time.Second
		patience = limit / 3
	)
	server := redistest.Single(t)
	plain := startHost(t, server.Client(t))
	h := startHost(t, server.Client(t), fx.Decorate(func(c pushfx.Config) pushfx.Config {
		setTimeouts(&c, limit)
		c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: patience}
		return c
	}))
	prepared := make(chan struct{})
	close(prepared)
	readUntil(plain, prepared) // creates the rules of the readers
	began := time.Now()
	a := h.ask(t, "@reader0:example.org", `PUT /pushrules/global/room/r {"actions":[]}`)
	if took := time.Since(began); a.status != http.StatusServiceUnavailable || took > limit+slack {
		t.Errorf("alone: got %s after %v, want it after %v", a, took, patience)
	}
	var writing sync.WaitGroup
	for n := range many {
		user := fmt.Sprintf("@writer%d:example.org", n)
		plain.do(user, http.MethodGet, v3+"/pushrules/", "")
		writing.Go(func() {
			began := time.Now()
			a := h.ask(t, user, `PUT /pushrules/global/room/r {"actions":[]}`)
			if took := time.Since(began); a.status != http.StatusServiceUnavailable || took > limit+slack {
				t.Errorf("got %s after %v", a, took)
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	reads := readUntil(h, done)
	t.Logf("reads while %d writers wait: %v", many, reads)
	if longest := reads[len(reads)-1]; longest >= patience*3/4 {
		t.Errorf("a read takes %v, as if it waited for the replica", longest)
	}
}

// sentWaits makes a server reply to each wait after a delay, like one with a replica and an append-only file. It
// records the scripts and waits.
type sentWaits struct {
	slow        time.Duration
	connections []*server.Peer
	commands    []string
}

func (w *sentWaits) answer(from *server.Peer, command string, args ...string) bool {
	switch command {
	case "EVALSHA":
		w.connections = append(w.connections, from)
		return false
	case "WAIT":
		time.Sleep(w.slow)
		from.WriteInt(1)
	case "WAITAOF":
		from.WriteLen(2)
		from.WriteInt(1)
		from.WriteInt(0)
	default:
		return false
	}
	w.connections = append(w.connections, from)
	w.commands = append(w.commands, strings.Join(append([]string{command}, args...), " "))
	return true
}

// All are on one connection, since a wait is for the writes of its connection.
func TestDurabilityOfTheFileGetsTheRestOfTheTimeout(t *testing.T) {
	t.Parallel()
	redis, client := embedded(t)
	cfg := rediscommit.DefaultConfig()
	cfg.Durability = rediscommit.Durability{Replicas: 1, AOF: true, Timeout: 500 * time.Millisecond}
	store, err := rulestore.New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var sent *sentWaits
	for _, user := range []mxid.UserID{"@first:example.org", alice} { // the first loads the script
		sent = &sentWaits{slow: 200 * time.Millisecond}
		redis.Server().SetPreHook(sent.answer)
		_, err := store.Update(t.Context(), user, func(rules *pushrule.Ruleset, _ bool) error {
			*rules = pushrule.ServerDefault(user)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var first, second int
	if _, err := fmt.Sscanf(strings.Join(sent.commands, ", "), "WAIT 1 %d, WAITAOF 1 0 %d", &first, &second); err != nil {
		t.Fatalf("%q: %v", sent.commands, err)
	}
	if len(slices.Compact(sent.connections)) != 1 || first > 500 || second > max(1, first-200) || second < 1 {
		t.Errorf("%d connections sent %q", len(slices.Compact(sent.connections)), sent.commands)
	}
}
