package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/pusher"
)

// brokenGateway answers every request with 500.
type brokenGateway struct{}

func (brokenGateway) Post(context.Context, string, []byte) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{Status: http.StatusInternalServerError}, nil
}

// deliver runs a host whose gateway is broken, and has it send an event to Alice.
func (b *bed) deliver() (stop func()) {
	b.t.Helper()
	cfg := pushfx.DefaultConfig()
	cfg.Delivery.Shards = 8
	host, err := pushfx.New(b.client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{Gateway: brokenGateway{}}})
	if err == nil {
		err = host.Check(b.t.Context())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		host.Run(ctx)
	}()
	err = host.Pushers.Set(ctx, alice, pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: secret}, Kind: pusher.HTTP, AppDisplayName: "App",
		DeviceDisplayName: "Phone", Lang: "en", Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}, pusher.KeepOthers)
	if err != nil {
		b.t.Fatal(err)
	}
	event := module.Event{JSON: `{"event_id":"$a","room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{"body":"` + secret + `"}}`}
	decisions, err := host.Notifier.Decide(ctx, event, []match.Member{{User: alice}})
	if err == nil {
		err = host.Notifier.Notify(ctx, event, "", decisions)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		cancel()
		<-ended
	}
}

func TestQueuesAreShown(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	if r := b.ctl("queues"); r.status != exitFailure || !strings.Contains(r.stderr, "no queue") {
		t.Errorf("without a queue: status %d, %s", r.status, r.stderr)
	}
	stop := b.deliver()
	defer stop()
	var held []shownHeld
	for deadline := time.Now().Add(time.Minute); len(held) == 0; {
		r := b.ctl("queues", "-user", string(alice), "-json")
		if err := json.Unmarshal([]byte(r.stdout), &held); err != nil || r.status != exitOK || time.Now().After(deadline) {
			t.Fatalf("status %d, %s%s", r.status, r.stdout, r.stderr)
		}
	}
	if h := held[0]; len(held) != 1 || h.Outcome != "failed" || h.Kept != 1 || h.Rejected {
		t.Errorf("got %+v", held)
	}
	if r := b.ctl("queues", "-user", string(alice)); r.status != exitOK || !strings.Contains(r.stdout, "LAST OUTCOME") || !strings.Contains(r.stdout, "failed") {
		t.Errorf("status %d, %s", r.status, r.stdout)
	}
	if r := b.ctl("queues", "-user", string(bob)); r.status != exitOK || !strings.Contains(r.stdout, "No pusher") {
		t.Errorf("of another user: status %d, %s", r.status, r.stdout)
	}
	if r := b.ctl("queues", "-user", "bob"); r.status != exitFailure {
		t.Errorf("of nobody: status %d", r.status)
	}
	r := b.ctl("queues")
	if r.status != exitOK || !strings.Contains(r.stdout, "8 of 8") || strings.Contains(r.stdout, "nobody") {
		t.Errorf("status %d, %s", r.status, r.stdout)
	}
	if r := b.ctl("check"); strings.Contains(r.stdout, "unknown key") {
		t.Errorf("check does not know the keys of delivery: %s", r.stdout)
	}
	stop()
	if r := b.ctl("queues"); r.status != exitProblems || !strings.Contains(r.stdout, "nobody  8 of 8") {
		t.Errorf("without a host: status %d, %s", r.status, r.stdout)
	}
}
