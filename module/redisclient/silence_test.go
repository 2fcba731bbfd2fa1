package redisclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/retry"
)

// refusal is an error reply of Redis.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestANodeOwesRepliesUntilItReplies(t *testing.T) {
	t.Parallel()
	// Commands end with an error after a second. Others go on.
	ends := func(err error) func(*silences) {
		return func(s *silences) {
			f := s.begin("node", 0)
			time.Sleep(time.Second)
			f.end(err)
		}
	}
	begins := func(onPurpose time.Duration) func(*silences) {
		return func(s *silences) { s.begin("node", onPurpose) }
	}
	for name, test := range map[string]struct {
		play []func(*silences)
		want time.Duration // two seconds later
	}{
		"nothing is sent":                {nil, 0},
		"no reply":                       {[]func(*silences){begins(0)}, 2 * time.Second},
		"a reply":                        {[]func(*silences){ends(nil)}, 0},
		"a refusal":                      {[]func(*silences){ends(refusal("NOSCRIPT"))}, 0},
		"its data is not in memory yet":  {[]func(*silences){ends(refusal("LOADING"))}, 3 * time.Second},
		"a timeout":                      {[]func(*silences){ends(context.DeadlineExceeded)}, 3 * time.Second},
		"a reply after a timeout":        {[]func(*silences){ends(context.DeadlineExceeded), ends(nil)}, 0},
		"a timeout after a reply":        {[]func(*silences){ends(nil), ends(context.DeadlineExceeded)}, 3 * time.Second},
		"a closed connection":            {[]func(*silences){ends(io.EOF)}, 0},
		"a reply to other commands":      {[]func(*silences){begins(0), ends(nil)}, 2 * time.Second},
		"no reply since another reply":   {[]func(*silences){ends(nil), begins(0)}, 2 * time.Second},
		"no reply, which waits for disk": {[]func(*silences){begins(time.Second)}, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &silences{observer: observe.None}
			for _, do := range test.play {
				do(s)
			}
			time.Sleep(2 * time.Second)
			if got := s.of("node").owes(); got != test.want {
				t.Errorf("%s: it owes a reply for %v, want %v", name, got, test.want)
			}
		})
	}
}

// keysOf returns a key of each master, by address.
func keysOf(t *testing.T, client *redis.ClusterClient, masters int) map[string]string {
	t.Helper()
	keys := map[string]string{}
	for n := 0; len(keys) < masters; n++ {
		key := fmt.Sprint("key", n)
		master, err := client.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		keys[master.Options().Addr] = key
	}
	return keys
}

// call sends writes for many users, and returns their errors by key, and how long it took.
func call(ctx context.Context, p *Pipelines, keys ...string) (errs map[string]error, took time.Duration) {
	var commands []*Command
	for _, key := range keys {
		commands = append(commands, write(key))
	}
	began := time.Now()
	errs = map[string]error{}
	for i, err := range p.Do(retry.LeaveSilent(ctx), Kind{}, commands...) {
		errs[keys[i]] = err
	}
	return errs, time.Since(began)
}

func TestCallsForManyUsersLeaveOutASilentNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	client, skipped := cluster.Client(t), &skipCounter{Observer: observe.None}
	p, all := NewPipelines(client, skipped), keysOf(t, client, 3)
	away := cluster.Masters()[1]
	own := all[away.Addr()]
	var keys []string
	for _, key := range all {
		keys = append(keys, key)
	}
	want := func(what string, within time.Duration, keys ...string) {
		t.Helper()
		errs, took := call(t.Context(), p, keys...)
		for key, err := range errs {
			if errors.Is(err, retry.ErrSilent) != (key == own) || key != own && err != nil {
				t.Errorf("%s: %s: %v", what, key, err)
			}
		}
		if took > within+200*time.Millisecond { // a busy machine
			t.Errorf("%s: after %v, want %v", what, took, within)
		}
	}
	if errs, _ := call(t.Context(), p, keys...); errs[own] != nil {
		t.Fatal(errs)
	}
	away.Pause()
	t.Cleanup(away.Resume)
	want("the first call", silentAfter+probeFor, keys...)
	for range 3 {
		want("a later call", probeFor, keys...)
		want("a call for a user there", probeFor, own)
	}
	if states := p.Silent(); !states[away.Addr()] || len(states) != 3 || skipped.Load() != 1 {
		t.Errorf("silent are %v, %d reports", states, skipped.Load())
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Do(ctx, Kind{IsRead: true}, read(own))[0]; err == nil || errors.Is(err, retry.ErrSilent) || time.Since(began) < 250*time.Millisecond {
		t.Errorf("a request for one user does not wait: %v after %v", err, time.Since(began))
	}
	away.Resume()
	eventually(t, "it replies", func() bool {
		errs, _ := call(t.Context(), p, keys...)
		return errs[own] == nil
	})
	if states := p.Silent(); states[away.Addr()] {
		t.Errorf("silent are %v", states)
	}
}

// A request for one user, and each call if there is one server, waits out a stall of two seconds.
func TestAStallOfTwoSecondsIsNoError(t *testing.T) {
	t.Parallel()
	single, cluster := redistest.Single(t), redistest.Cluster(t, 3, 0)
	clusterClient := cluster.Client(t)
	for name, test := range map[string]struct {
		server *redistest.Server
		client redis.UniversalClient
		key    string
		ctx    context.Context
	}{
		"one server":          {single, single.Client(t), "key", retry.LeaveSilent(t.Context())},
		"a request of a user": {cluster.Masters()[0], clusterClient, keysOf(t, clusterClient, 3)[cluster.Masters()[0].Addr()], t.Context()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := NewPipelines(test.client, nil)
			if err := p.Do(test.ctx, Kind{}, write(test.key))[0]; err != nil {
				t.Fatal(err)
			}
			test.server.Pause()
			time.AfterFunc(2*time.Second, test.server.Resume)
			began := time.Now()
			if err := p.Do(test.ctx, Kind{}, write(test.key))[0]; err != nil || time.Since(began) < 1900*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
	}
}

// While a master fails over, a call leaves out its users, and finds the new master without an error of its own.
func TestAFailoverEndsASilence(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 1)
	client := cluster.Client(t)
	p, all := NewPipelines(client, nil), keysOf(t, client, 3)
	away := cluster.Masters()[0]
	own := all[away.Addr()]
	away.Pause()
	t.Cleanup(away.Resume)
	if errs, _ := call(t.Context(), p, own); !errors.Is(errs[own], retry.ErrSilent) {
		t.Errorf("got %v", errs)
	}
	eventually(t, "the replica has taken over", func() bool {
		errs, took := call(t.Context(), p, own)
		return errs[own] == nil && took < silentAfter
	})
}

// With sentinels there is one server at a time: calls wait for the new master.
func TestCallsWaitForSentinels(t *testing.T) {
	t.Parallel()
	s := redistest.Sentinel(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: s.MasterName(), SentinelAddrs: []string{s.Addr()}, ContextTimeoutEnabled: true, ReadTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	p := NewPipelines(client, nil)
	if errs, _ := call(t.Context(), p, "key"); errs["key"] != nil {
		t.Fatal(errs)
	}
	s.Master().Pause()
	t.Cleanup(s.Master().Resume)
	eventually(t, "the replica has taken over", func() bool {
		errs, _ := call(t.Context(), p, "key")
		if errors.Is(errs["key"], retry.ErrSilent) {
			t.Fatal(errs)
		}
		return errs["key"] == nil
	})
}

func TestAWaitForReplicasIsNoSilence(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	client := cluster.Client(t)
	p := NewPipelines(client, nil)
	began := time.Now()
	kind := Kind{Durability: Durability{Replicas: 1, Timeout: 2 * time.Second}}
	err := p.Do(retry.LeaveSilent(t.Context()), kind, write("key"))[0]
	if took := time.Since(began); !errors.Is(err, fault.ErrNotConfirmed) || took < 1900*time.Millisecond {
		t.Errorf("got %v after %v", err, took)
	}
}

// A silent node that has left the cluster does not count for ever, also if nobody asks for the metrics.
func TestASilentNodeThatGetsNoCommandsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silences{observer: observe.None}
		s.begin("gone:6379", 0).end(context.DeadlineExceeded)
		s.of("gone:6379").isSilent = true
		if !s.hasAny() {
			t.Error("no node is silent")
		}
		if time.Sleep(shownFor + time.Second); s.hasAny() {
			t.Error("it is silent for ever")
		}
	})
}

// A master that answers PING but delays all writes, as in a manual failover, costs its own users, too.
func TestAMasterThatDelaysWritesIsSilent(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	client := cluster.Client(t)
	p, all := NewPipelines(client, nil), keysOf(t, client, 3)
	away := cluster.Masters()[1]
	own := all[away.Addr()]
	if errs, _ := call(t.Context(), p, own); errs[own] != nil {
		t.Fatal(errs)
	}
	node := p.Master(t.Context(), own)
	if err := node.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err(); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if errs, took := call(t.Context(), p, own); !errors.Is(errs[own], retry.ErrSilent) || n > 0 && took > probeFor+200*time.Millisecond {
			t.Errorf("got %v after %v", errs[own], took)
		}
	}
	if err := node.Do(t.Context(), "CLIENT", "UNPAUSE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it replies", func() bool {
		errs, _ := call(t.Context(), p, own)
		return errs[own] == nil
	})
}
