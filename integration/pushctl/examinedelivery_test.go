package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// The repair of a user whom the index lacks lets hosts send.
func TestAUserWhoIsNotListedIsRepaired(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(4)
	d.away(alice)
	d.stop()
	for shard := range 4 {
		d.do("DEL", d.keys.ShardGates(shard))
	}
	d.says(notListed.name+"\t"+string(alice), exitProblems, "check", "-list")
	d.want(exitProblems, "repair")
	d.want(exitOK, "repair", "-yes")
	d.want(exitOK, "check")
	again := d.deliver(4)
	again.answers(takes)
	select {
	case <-again.posted:
	case <-time.After(time.Minute):
		t.Error("nothing was sent")
	}
	again.stop()
}

// Hosts send nothing to a user whose log they cannot read.
func TestADamagedLogIsShown(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(4)
	d.away(alice)
	d.stop()
	log := d.keys.UserLog(alice)
	fields, err := d.client.HKeys(t.Context(), log).Result()
	if err != nil {
		t.Fatal(err)
	}
	own := fields[slices.IndexFunc(fields, isPusher)]
	for _, command := range [][]any{{"HSET", log, own, "damaged"}, {"HSET", log, stored.KeptField(own), "damaged"}, {"HSET", log, stored.LogField, "damaged"}, {"SET", log, "x"}} {
		before := d.client.Dump(t.Context(), log).Val()
		d.do(command...)
		d.says("damaged", exitProblems, "queues", "show", string(alice))
		d.says(string(alice), exitProblems, "check", "-list")
		if err := d.client.RestoreReplace(t.Context(), log, 0, before).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A user's other pushers are shown, counted and repaired beside one whose state cannot be read.
func TestADamagedPusherHidesNoOtherPusher(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(4)
	d.away(alice)
	d.stop()
	d.do("HSET", d.keys.UserLog(alice), "x", "damaged")
	if r := d.want(exitProblems, "check"); !strings.Contains(r.stdout, "1 waiting notification") {
		t.Errorf("check: %s", r.stdout)
	}
	for shard := range 4 {
		d.do("DEL", d.keys.ShardGates(shard))
	}
	if r := d.want(exitProblems, "repair", "-yes", "-list"); !strings.Contains(r.stdout, "repaired\t"+notListed.name+"\t"+string(alice)) {
		t.Errorf("repair: %s", r.stdout)
	}
}
