package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/stored"
)

// The repair of what hosts add, fail to deliver and deliver at that moment changes nothing.
func TestCheckFindsNothingWhileHostsSend(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(4)
	var mu sync.Mutex
	tries := map[string]int{}
	d.answers(func(pushkey string) (module.GatewayAnswer, error) {
		mu.Lock()
		defer mu.Unlock()
		if tries[pushkey]++; tries[pushkey]%3 != 0 {
			return module.GatewayAnswer{Status: 502}, nil
		}
		return module.GatewayAnswer{Status: 200}, nil
	})
	var users []mxid.UserID
	for n := range 20 {
		users = append(users, mxid.UserID(fmt.Sprintf("@u%d:example.org", n)))
	}
	d.notify(users...)
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for ctx.Err() == nil {
			d.notify(users...)
			time.Sleep(20 * time.Millisecond)
		}
	})
	sending.Go(func() {
		for range d.posted {
			if ctx.Err() != nil {
				return
			}
		}
	})
	for range 15 {
		if r := d.want(exitOK, "repair", "-yes", "-list"); r.stdout != "No problems.\n" {
			t.Errorf("got %s", r.stdout)
		}
	}
	stop()
	d.answers(takes)
	d.posted <- ""
	sending.Wait()
	d.stop()
}

// Hosts are started with fewer shards, on the queue of hosts with more.
func TestBacklogsOfAShardThatNoHostLooksAtAreSent(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(64)
	var users []mxid.UserID
	for n := range 12 {
		users = append(users, mxid.UserID(fmt.Sprintf("@u%d:example.org", n)))
	}
	d.notify(users...)
	d.notify(users...)
	d.until("all wait", func() bool {
		return !slices.ContainsFunc(users, func(user mxid.UserID) bool { return d.queues(user)[0].Last != "503" })
	})
	d.stop()
	d.do("DEL", d.keys.DeliveryFormat())
	few := d.deliver(2)
	if r := few.want(exitProblems, "check", "-list"); !strings.Contains(r.stdout, strayShard.name+"\tshard ") {
		t.Errorf("check: %s", r.stdout)
	}
	few.want(exitProblems, "repair")
	few.want(exitOK, "repair", "-yes")
	few.want(exitOK, "check")
	few.answers(takes)
	few.want(exitOK, "queues", "retry", "-gateway", "push.example.org", "-yes")
	var got []string
	for len(got) < 2*len(users) {
		select {
		case pushkey := <-few.posted:
			got = append(got, pushkey)
		case <-time.After(time.Minute):
			t.Fatalf("sent %q", got)
		}
	}
	for _, user := range users {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(key string) bool { return !strings.HasSuffix(key, string(user)) })); n != 2 {
			t.Errorf("%s got %d notifications", user, n)
		}
	}
	few.stop()
}

// A large shard is read in parts, so that clients' requests do not wait long.
func TestCheckReadsALargeShardInParts(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	const backlogs, gates = 900, 30
	isLost := map[int]bool{10: true, 450: true, 899: true}
	_, err := b.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for n := range backlogs {
			name, gate := fmt.Sprint("target", n), fmt.Sprint("gate", n%gates)
			entry := `h0123456789abcdefroom0000user00000000001700000000{"u":"@alice:example.org"}`
			p.HSet(t.Context(), b.keys.ShardFirst(0), name, stored.FirstEntry(gate, entry))
			if !isLost[n] {
				p.ZAdd(t.Context(), b.keys.Due(0, gate), redis.Z{Score: 1, Member: name})
			}
			p.ZAdd(t.Context(), b.keys.ShardGates(0), redis.Z{Score: 1, Member: gate})
		}
		return p.ConfigResetStat(t.Context()).Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	r := b.want(exitProblems, "check", "-list")
	if n := strings.Count(r.stdout, lostBacklog.name+"\t"); n != len(isLost) || !strings.Contains(r.stdout, fmt.Sprint(backlogs, " waiting")) {
		t.Errorf("%d are lost:\n%s", n, r.stdout)
	}
	if stats := b.client.Info(t.Context(), "commandstats").Val(); !strings.Contains(stats, "cmdstat_hscan:") {
		t.Errorf("the shard was read at once: %s", stats)
	}
}
