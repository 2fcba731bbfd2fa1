package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// dying is the Notifier of a host that dies at a step. Its own goroutine is all
// that dies here; nothing else would go on with the event.
type dying struct {
	module.Notifier
	step string
}

func (d dying) at(step string) {
	if d.step == step {
		runtime.Goexit()
	}
}

func (d dying) Decide(ctx context.Context, e module.Event, members []match.Member) (module.Decisions, error) {
	d.at("committed")
	return d.Notifier.Decide(ctx, e, members)
}

func (d dying) Notify(ctx context.Context, e module.Event, part string, decisions module.Decisions) error {
	d.at("decided")
	if d.step == "unavailable" {
		return module.Unavailable(errors.New("away"))
	}
	err := d.Notifier.Notify(ctx, e, part, decisions)
	d.at("notified")
	return err
}

// newOutboxHost returns a host with delivery for an outbox, which runs until the
// test ends.
func newOutboxHost(t *testing.T, client redis.UniversalClient) (config, *pushfx.Push) {
	t.Helper()
	cfg, err := parseFlags([]string{"-key-prefix", "hs1:"})
	if err != nil {
		t.Fatal(err)
	}
	push, err := pushfx.New(client, cfg.module, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err == nil {
		err = push.Check(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		push.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return cfg, push
}

// Wherever a host dies once an event is committed, another one hands it over, and
// it is sent once.
func TestAnEventThatIsCommittedIsSentOnce(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const user, events = "@alice:localhost", 5
	client := redistest.Single(t).Client(t)
	cfg, push := newOutboxHost(t, client)
	var arrived receiver.Recorder
	gateway := httptest.NewServer(receiver.New(arrived.Add))
	t.Cleanup(gateway.Close)
	p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: "key"}, Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: "Phone",
		Lang: "en", Data: `{"url":"` + gateway.URL + receiver.Path + `"}`}
	if err := push.Pushers.Set(t.Context(), user, p, pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	alive := newOutbox(cfg, client, push.Notifier)
	want := map[string]bool{}
	for _, step := range []string{"committed", "decided", "unavailable", "notified", "deleted"} {
		dies := newOutbox(cfg, client, dying{push.Notifier, step})
		for n := range events {
			id := fmt.Sprintf("$%s-%d", step, n)
			want[id] = true
			r := row{id, module.Event{JSON: fmt.Sprintf(
				`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{}}`, id)}, []mxid.UserID{user}}
			if err := dies.commit(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			died := make(chan struct{})
			go func() {
				defer close(died)
				_ = dies.handOver(t.Context(), r)
			}()
			<-died
		}
		left, err := alive.olderThan(t.Context(), 0)
		if rows := map[bool]int{true: 0, false: events}[step == "deleted"]; err != nil || len(left) != rows {
			t.Errorf("%s: %d rows are left, want %d; %v", step, len(left), rows, err)
		}
		if young, err := alive.olderThan(t.Context(), time.Hour); err != nil || len(young) != 0 {
			t.Errorf("%s: %d rows are older than an hour, %v", step, len(young), err)
		}
		for range 2 {
			if err := alive.handOverRest(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := client.HLen(t.Context(), alive.key).Val(); n != 0 {
			t.Errorf("%s: %d rows are left after they were handed over", step, n)
		}
	}
	last := row{"$last", module.Event{JSON: `{"event_id":"$last","room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{}}`}, []mxid.UserID{user}}
	if err := alive.handOver(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	poll(t, "the last one has arrived", func() bool {
		all, _ := arrived.All()
		clear(got)
		for _, n := range all {
			got[n.EventID]++
		}
		return got["$last"] > 0
	})
	for id := range want {
		if got[id] != 1 {
			t.Errorf("%s has arrived %d times", id, got[id])
		}
	}
}

func TestAnEventThatIsRefusedLeavesTheOutbox(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	client := redistest.Single(t).Client(t)
	cfg, push := newOutboxHost(t, client)
	o, r := newOutbox(cfg, client, push.Notifier), row{ID: "$x", Event: module.Event{JSON: `{"type":"x"}`}}
	if err := o.commit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := o.handOver(t.Context(), r); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("got %v", err)
	}
	if left, err := o.olderThan(t.Context(), 0); err != nil || len(left) != 0 {
		t.Errorf("%d rows are left, %v", len(left), err)
	}
}

// A host that starts sends what another has left, when that is 10 s old.
func TestTheDemoSendsWhatAnotherHasLeft(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	server := redistest.Single(t)
	client := server.Client(t)
	flags := []string{"-redis-mode", "standalone", "-redis", "redis://" + server.Addr(), "-key-prefix", "hs1:"}
	first := startDemo(t, flags...)
	first.setPusherHere("demo-alice", "phone", "")
	now := client.Time(t.Context()).Val().Unix()
	for id, age := range map[string]int64{"$old": 10, "$young": 0} {
		data, err := json.Marshal(row{id, module.Event{JSON: fmt.Sprintf(
			`{"event_id":%q,"room_id":"!r:x","type":"m.room.message","sender":"@bob:localhost","content":{}}`, id)},
			[]mxid.UserID{"@alice:localhost"}})
		if err == nil {
			err = client.HSet(t.Context(), "hs1:demo:outbox", id, fmt.Sprint(now-age, " ", string(data))).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	second := startDemo(t, flags...)
	poll(t, "the old one is printed", func() bool { return strings.Contains(first.stdout.String()+second.stdout.String(), "event $old") })
	poll(t, "its row is deleted", func() bool { return client.HLen(t.Context(), "hs1:demo:outbox").Val() == 1 })
	if strings.Contains(first.stdout.String()+second.stdout.String(), "event $young") {
		t.Error("a young one was sent")
	}
}
