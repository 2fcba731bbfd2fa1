package rediscommit

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

var aRevision = regexp.MustCompile(`\n\{"version":(\d+),"changes":\d+,"writers":\{"[A-Z2-7]{13}":(\d+)\}\}`)

var oneReplica = Durability{Replicas: 1, Timeout: 4 * time.Second}

// late is how late a call may return on a busy machine.
const late = 5 * time.Second

func replicated(t *testing.T, replicas int) *redistest.ReplicatedServers {
	t.Helper()
	return redistest.Replicated(t, replicas, "--repl-diskless-sync", "no")
}

func pause(t *testing.T, server *redistest.Server) {
	t.Helper()
	client := server.Client(t)
	server.Pause()
	for answers := true; answers; {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		answers = client.Ping(ctx).Err() == nil
		cancel()
	}
}

type testScript struct {
	store  *Store[string, string]
	script *redis.Script
	source string
}

// newTestScript returns a script on pipelines of its own, unless they are given.
func newTestScript(client redis.UniversalClient, pipelines *redisclient.Pipelines, source string, d Durability) testScript {
	o := Options{Pipelines: pipelines}
	writer := &Writer{o.PipelinesOn(client), "", "", Config{}, observe.Or(nil)}
	return testScript{&Store[string, string]{writer: writer, cfg: Config{Durability: d}}, redis.NewScript(source), source}
}

func (s testScript) run(ctx context.Context, key string, args []any) (done bool, err error) {
	return s.store.run(ctx, redisclient.NewScript(s.source), key, args...)
}

// maxLateness is how late a server may end a wait.
const maxLateness = 200 * time.Millisecond

const setting = `redis.call('SET', KEYS[1], ARGV[1]) return 1`

func TestScriptWaitsForItsReplicas(t *testing.T) {
	t.Parallel()
	servers := replicated(t, 2)
	var replicas []*redis.Client
	for _, s := range servers.Replicas() {
		replicas = append(replicas, s.Client(t))
	}
	for wanted := 1; wanted <= 2; wanted++ {
		set := newTestScript(servers.Master().Client(t), nil, setting, Durability{Replicas: wanted, Timeout: oneReplica.Timeout})
		for n := range 50 {
			value := fmt.Sprint(wanted, n)
			if done, err := set.run(t.Context(), "key", []any{value}); !done || err != nil {
				t.Fatalf("got %t, %v", done, err)
			}
			have := 0
			for _, r := range replicas {
				if r.Get(t.Context(), "key").Val() == value {
					have++
				}
			}
			if have < wanted {
				t.Errorf("%d of %d replicas have the change", have, wanted)
			}
		}
	}
	set := newTestScript(servers.Master().Client(t), nil, setting, Durability{Replicas: 3, Timeout: 20 * time.Millisecond})
	done, err := set.run(t.Context(), "key", []any{"x"})
	if done || err == nil || !strings.Contains(err.Error(), "2 of 3 replicas") {
		t.Errorf("got %t, %v", done, err)
	}
}

// shortages start a master without enough working replicas, and return a client and the
// master.
var shortages = map[string]func(*testing.T) (redis.UniversalClient, *redistest.Server){
	"no replica": func(t *testing.T) (redis.UniversalClient, *redistest.Server) {
		server := redistest.Single(t)
		return server.Client(t), server
	},
	"a paused replica": func(t *testing.T) (redis.UniversalClient, *redistest.Server) {
		pair := replicated(t, 1)
		pause(t, pair.Replicas()[0])
		return pair.Master().Client(t), pair.Master()
	},
	"a killed replica": func(t *testing.T) (redis.UniversalClient, *redistest.Server) {
		pair := replicated(t, 1)
		pair.Replicas()[0].Stop()
		return pair.Master().Client(t), pair.Master()
	},
	"a paused replica in a cluster": func(t *testing.T) (redis.UniversalClient, *redistest.Server) {
		cluster := redistest.Cluster(t, 1, 1)
		client := cluster.Client(t)
		learnCommands(t, client)
		pause(t, cluster.Nodes()[1])
		return client, cluster.Masters()[0]
	},
}

// learnCommands makes a client load the table of commands now, because a paused server
// would not reply.
func learnCommands(t *testing.T, client *redis.ClusterClient) {
	t.Helper()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestScriptWithoutItsReplicasFailsAfterTheTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	for name, start := range shortages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, server := start(t)
			master := server.Client(t)
			set := newTestScript(client, nil, setting, Durability{Replicas: 1, Timeout: timeout})
			if err := set.script.Load(t.Context(), master).Err(); err != nil { // avoids a second wait
				t.Fatal(err)
			}
			for _, value := range []string{"a", "b"} {
				began := time.Now()
				done, err := set.run(t.Context(), "key", []any{value})
				took := time.Since(began)
				if done || err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
					t.Errorf("got %t, %v", done, err)
				}
				if took < timeout || took > timeout+maxLateness+late {
					t.Errorf("it took %v", took)
				}
				if got := master.Get(t.Context(), "key").Val(); got != value {
					t.Errorf("stored is %q", got)
				}
			}
		})
	}
}

// A busy server checks more often whether a wait is over, so it could end one early.
func TestBusyServerEndsNoWaitEarly(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 80}) // of which waits get half
	defer client.Close()
	set := newTestScript(client, nil, setting, Durability{Replicas: 1, Timeout: timeout})
	if err := set.script.Load(t.Context(), client).Err(); err != nil { // avoids a second script in the measured time
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for ctx.Err() == nil {
			client.Ping(ctx)
		}
	})
	parallel(20, func(int) {
		for range 5 {
			began := time.Now()
			done, err := set.run(t.Context(), "key", []any{"x"})
			if took := time.Since(began); done || !errors.Is(err, fault.ErrNotConfirmed) || took < timeout {
				t.Errorf("got %t, %v after %v", done, err, took)
			}
		}
	})
	stop()
	busy.Wait()
}

func TestScriptThatReplies0IsNeverDone(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	durability := Durability{Replicas: 1, Timeout: 20 * time.Millisecond}
	set, refuse := newTestScript(client, nil, setting, durability), newTestScript(client, nil, `return 0`, durability)
	for range 3 {
		if done, err := refuse.run(t.Context(), "key", nil); done || err != nil {
			t.Errorf("got %t, %v", done, err)
		}
		if done, err := set.run(t.Context(), "key", []any{"x"}); done || err == nil {
			t.Errorf("got %t, %v", done, err)
		}
	}
}

func TestScriptIsSentAgainToAServerThatForgotIt(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 1, 1)
	master := cluster.Masters()[0].Client(t)
	for name, client := range map[string]redis.UniversalClient{"single": master, "cluster": cluster.Client(t)} {
		t.Run(name, func(t *testing.T) {
			set := newTestScript(client, nil, setting, oneReplica)
			for n := range 5 {
				if err := master.ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				if done, err := set.run(t.Context(), "key", []any{n}); !done || err != nil {
					t.Errorf("got %t, %v", done, err)
				}
				if known, err := set.script.Exists(t.Context(), master).Result(); err != nil || !slices.Equal(known, []bool{true}) {
					t.Errorf("got %v, %v", known, err)
				}
			}
		})
	}
}

func TestScriptWithAnErrorIsNotDone(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	broken := newTestScript(client, nil, `return redis.call('INCR', KEYS[1], KEYS[1])`, Durability{Replicas: 1, Timeout: time.Millisecond})
	if done, err := broken.run(t.Context(), "key", nil); done || err == nil || !strings.Contains(err.Error(), "Wrong number of args") {
		t.Errorf("got %t, %v", done, err)
	}
}

func TestWaitEndedByADeadlineKeepsItsConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	set := newTestScript(client, nil, setting, Durability{Replicas: 1, Timeout: 4 * time.Second})
	if err := set.script.Load(t.Context(), client).Err(); err != nil { // avoids a second wait
		t.Fatal(err)
	}
	connections := func() string {
		info := client.InfoMap(t.Context(), "stats").Val()
		return info["Stats"]["total_connections_received"]
	}
	answered := 0 // replies in time, in a row; a busy machine may delay the server
	for tries := 0; answered < 4 && tries < 40; tries++ {
		before := connections()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := set.run(ctx, "key", []any{"x"})
		cancel()
		if !errors.Is(err, fault.ErrNotConfirmed) {
			t.Logf("got error %v", err)
			answered = 0
			continue
		}
		if after := connections(); answered > 0 && after != before {
			t.Errorf("%s connections were made, then %s", before, after)
		}
		answered++
	}
	if answered < 4 {
		t.Error("the server did not reply in time four times in a row")
	}
}

func parallel(n int, do func(n int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { do(i) })
	}
	group.Wait()
}

// All stores together may hold two of the four connections to a node.
func TestWaitsLeaveConnectionsToOtherCommands(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2, 1)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: servers.Addrs(), PoolSize: 4, PipelinePoolSize: -1, ContextTimeoutEnabled: true, ReadTimeout: never,
	})
	defer client.Close()
	pipelines := redisclient.NewPipelines(client, nil)
	store, otherStore := newTestScript(client, pipelines, setting, oneReplica), newTestScript(client, pipelines, setting, oneReplica)
	run := func(set testScript, key string, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		done, err := set.run(ctx, key, []any{"x"})
		if done != (err == nil) {
			t.Errorf("got %t, %v", done, err)
		}
		return err
	}
	silent, other := keyOf(t, client, servers.Masters()[0]), keyOf(t, client, servers.Masters()[1])
	for _, key := range []string{silent, other} {
		if err := run(store, key, never); err != nil {
			t.Fatal(err)
		}
	}
	learnCommands(t, client)
	pause(t, servers.Nodes()[2])
	var waiting sync.WaitGroup
	for _, set := range []testScript{store, otherStore} {
		waiting.Go(func() {
			if err := run(set, silent, 4*time.Second); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
				t.Errorf("got error %v", err)
			}
		})
	}
	master := servers.Masters()[0].Client(t)
	for master.InfoMap(t.Context(), "clients").Val()["Clients"]["blocked_clients"] != "2" {
		time.Sleep(time.Millisecond)
	}
	if err := run(store, silent, 300*time.Millisecond); err == nil || !strings.Contains(err.Error(), "other changes wait") {
		t.Errorf("a third wait: got error %v", err)
	}
	began := time.Now()
	if err := errors.Join(run(store, other, never), client.Get(t.Context(), silent).Err()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > late {
		t.Errorf("the other commands took %v", took)
	}
	waiting.Wait()
}

func keyOf(t *testing.T, client *redis.ClusterClient, master *redistest.Server) string {
	t.Helper()
	for n := range 1000 {
		key := fmt.Sprint("key", n)
		node, err := client.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == master.Addr() {
			return key
		}
	}
	t.Fatalf("found no key of %s", master.Addr())
	return ""
}

func TestScriptWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fsync string
		fault string // empty for none
	}{
		{"always", ""},
		{"everysec", ""},
		{"no", "not have the change on disk after 250ms"},
	} {
		t.Run("appendfsync "+test.fsync, func(t *testing.T) {
			t.Parallel()
			client := redistest.Single(t, "--appendonly", "yes", "--appendfsync", test.fsync).Client(t)
			requireWAITAOF(t, client)
			durability := Durability{AOF: true, Timeout: 4 * time.Second}
			if test.fault != "" {
				durability.Timeout = 250 * time.Millisecond
			}
			set := newTestScript(client, nil, setting, durability)
			for n := range 3 {
				began := time.Now()
				done, err := set.run(t.Context(), "key", []any{n})
				took := time.Since(began)
				if done != (err == nil) || done != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %t, %v, want %q", done, err, test.fault)
				}
				if err != nil && took < durability.Timeout || took > durability.Timeout+maxLateness+late {
					t.Errorf("it took %v", took)
				}
			}
		})
	}
}

func TestScriptFailsWithoutAOF(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	requireWAITAOF(t, client)
	set := newTestScript(client, nil, setting, Durability{AOF: true, Timeout: time.Second})
	done, err := set.run(t.Context(), "key", []any{"x"})
	if done || err == nil || !strings.Contains(err.Error(), "appendonly is disabled") {
		t.Errorf("got %t, %v", done, err)
	}
}

func TestScriptWaitsForReplicasAndDisk(t *testing.T) {
	t.Parallel()
	requireWAITAOF(t, redistest.Single(t).Client(t))
	pair := redistest.Replicated(t, 1, "--appendonly", "yes", "--appendfsync", "always")
	client := pair.Master().Client(t)
	run := func(fault string) {
		t.Helper()
		set := newTestScript(client, nil, setting, Durability{Replicas: 1, AOF: true, Timeout: 2 * time.Second})
		done, err := set.run(t.Context(), "key", []any{"x"})
		if done != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("got %t, %v, want %q", done, err, fault)
		}
	}
	configure := func(name, value string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	run("")
	configure("appendfsync", "no")
	run("on disk")
	configure("appendfsync", "always")
	pause(t, pair.Replicas()[0])
	run("0 of 1 replicas")
}
