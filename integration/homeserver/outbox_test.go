package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/homeserver/sessions"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// away is a Notifier that cannot hand anything over.
type away struct{ module.Notifier }

func (away) Notify(context.Context, module.Event, string, module.Decisions) error {
	return module.Unavailable(errors.New("away"))
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

func TestAnEventThatCannotBeHandedOverStaysInTheOutbox(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	client := redistest.Single(t).Client(t)
	cfg, push := newOutboxHost(t, client)
	o, r := newOutbox(cfg, client, sessions.NewStore(client, "hs1:", patience), away{push.Notifier}), row{ID: "$x", Event: module.Event{JSON: eventInOutbox}}
	if err := o.commit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := o.handOver(t.Context(), r); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
	if young, err := o.olderThan(t.Context(), time.Hour); err != nil || len(young) != 0 {
		t.Errorf("%d rows are older than an hour, %v", len(young), err)
	}
	if left, err := o.olderThan(t.Context(), 0); err != nil || len(left) != 1 || left[0].Event.JSON != eventInOutbox {
		t.Errorf("got rows %+v, %v", left, err)
	}
	o.notifier = push.Notifier
	if err := o.handOverRest(t.Context(), 0); err != nil {
		t.Errorf("got %v", err)
	}
	if left, err := o.olderThan(t.Context(), 0); err != nil || len(left) != 0 {
		t.Errorf("%d rows are left after they were handed over, %v", len(left), err)
	}
}

const eventInOutbox = `{"event_id":"$x","room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{}}`

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
