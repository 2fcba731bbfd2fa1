package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

type delivering struct {
	*fixture
	host   *pushfx.Push
	stop   func()
	events int
	posted chan string // pushkeys of delivered notifications
	answer atomic.Pointer[func(pushkey string) (module.GatewayAnswer, error)]
}

// deliver starts a host.
func (b *fixture) deliver(shards int) *delivering {
	b.t.Helper()
	d := &delivering{fixture: b, posted: make(chan string, 1000)}
	d.isAway()
	cfg := pushfx.DefaultConfig()
	cfg.Delivery.Shards = shards
	var err error
	d.host, err = pushfx.New(b.client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{Gateway: d}})
	if err == nil {
		err = d.host.Check(b.t.Context())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.host.Run(ctx)
	}()
	d.stop = func() {
		cancel()
		<-ended
	}
	return d
}

func (d *delivering) Post(_ context.Context, _ string, body []byte) (module.GatewayAnswer, error) {
	var n struct {
		Notification struct{ Devices []struct{ Pushkey string } }
	}
	if err := json.Unmarshal(body, &n); err != nil {
		return module.GatewayAnswer{}, err
	}
	pushkey := n.Notification.Devices[0].Pushkey
	answer, err := (*d.answer.Load())(pushkey)
	if err == nil {
		d.posted <- pushkey
	}
	return answer, err
}

// isAway makes the gateway tell pushers to wait for an hour.
func (d *delivering) isAway() {
	d.answers(func(string) (module.GatewayAnswer, error) {
		return module.GatewayAnswer{Status: http.StatusServiceUnavailable, RetryAfter: time.Hour}, nil
	})
}

func (d *delivering) answers(answer func(pushkey string) (module.GatewayAnswer, error)) {
	d.answer.Store(&answer)
}

func takes(string) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{Status: http.StatusOK}, nil
}

// notify sends users an event. Users without a pusher get one.
func (d *delivering) notify(users ...mxid.UserID) {
	d.t.Helper()
	ctx, members := d.t.Context(), make([]match.Member, len(users))
	for i, user := range users {
		members[i].User = user
		if list, err := d.host.Pushers.List(ctx, user); err != nil || list.Len() > 0 {
			continue
		}
		d.set(user, string(user))
	}
	d.events++
	event := module.Event{JSON: fmt.Sprintf(
		`{"event_id":"$%d","room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{"body":"%s"}}`, d.events, secret)}
	decisions, err := d.host.Notifier.Decide(ctx, event, members)
	if err == nil {
		err = d.host.Notifier.Notify(ctx, event, "", decisions)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (b *fixture) queues(user mxid.UserID) (all []shownQueue) {
	b.t.Helper()
	r := b.want(exitOK, "queues", "show", string(user), "-json")
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil {
		b.t.Fatal(err)
	}
	return all
}

func (b *fixture) until(what string, is func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("timeout: %s", what)
		}
	}
}

// away makes a notification wait for a user's pusher, whose gateway is away.
func (d *delivering) away(user mxid.UserID) {
	d.t.Helper()
	d.isAway()
	d.notify(user)
	d.until("the pusher waits", func() bool {
		all := d.queues(user)
		return len(all) == 1 && all[0].State == stateWaits && all[0].Last == "503"
	})
}

func TestQueuesAreShown(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	if r := b.ctl("queues"); r.status != exitFailure || !strings.Contains(r.stderr, "no host has started with pushfx.Delivery") {
		t.Errorf("without a queue: status %d, %s", r.status, r.stderr)
	}
	d := b.deliver(8)
	if r := b.want(exitOK, "queues"); !strings.Contains(r.stdout, "0 pushers have a backlog") {
		t.Errorf("got %s", r.stdout)
	}
	d.away(alice)
	d.notify(alice)
	var q shownQueues
	r := b.want(exitOK, "queues", "-json")
	if err := json.Unmarshal([]byte(r.stdout), &q); err != nil || q.Backlogs != 1 || q.Failing != 1 || q.Stalled {
		t.Errorf("got %+v, %v", q, err)
	}
	if all := d.queues(alice); all[0].Notifications != 2 || all[0].Gateway != "https://push.example.org:443" || all[0].Attempts != 1 {
		t.Errorf("got %+v", all)
	}
	r = b.want(exitOK, "queues", "show", string(alice))
	if !strings.Contains(r.stdout, "503") || strings.Contains(r.stdout, secret) {
		t.Errorf("got %s", r.stdout)
	}
	// No host sends.
	d.stop()
	shard := delivery.ShardOf(alice, 8)
	name := b.client.ZRange(t.Context(), b.keys.ShardDue(shard), 0, 0).Val()[0]
	b.do("ZADD", b.keys.ShardDue(shard), time.Now().Add(-time.Minute).UnixMicro()|1, name)
	if r := b.want(exitProblems, "queues"); !strings.Contains(r.stdout, "No host sends") {
		t.Errorf("got %s", r.stdout)
	}
	if r := b.want(exitProblems, "queues", "show", string(alice)); !strings.Contains(r.stdout, stateLate) {
		t.Errorf("got %s", r.stdout)
	}
}

func TestPushersAreRetried(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	for _, args := range [][]string{{string(alice)}, {"-gateway", "push.example.org"}} {
		if r := d.want(exitOK, append([]string{"queues", "retry"}, args...)...); !strings.Contains(r.stdout, "would retry 1 pushers") {
			t.Errorf("got %s", r.stdout)
		}
	}
	d.answers(takes)
	d.want(exitFailure, "queues", "retry")
	if r := d.want(exitOK, "queues", "retry", string(alice), "-yes"); !strings.Contains(r.stdout, "done: retry 1 pushers") {
		t.Errorf("got %s", r.stdout)
	}
	d.until("it is delivered", func() bool { return d.queues(alice)[0].Notifications == 0 })
}

func TestBacklogsAreFlushed(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.notify(alice)
	d.away(bob)
	d.stop()
	if r := d.want(exitOK, "queues", "flush", string(alice)); !strings.Contains(r.stdout, "would drop 2 notifications of 1 pushers") {
		t.Errorf("got %s", r.stdout)
	}
	if r := d.want(exitOK, "queues", "flush", "-gateway", "https://push.example.org:443", "-yes"); !strings.Contains(r.stdout, "done: drop 3 notifications of 2 pushers") {
		t.Errorf("got %s", r.stdout)
	}
	if r := d.want(exitOK, "queues", "flush", string(alice), "-yes"); !strings.Contains(r.stdout, "done: drop 0 notifications of 0 pushers") {
		t.Errorf("got %s", r.stdout)
	}
	for _, key := range d.client.Keys(t.Context(), "delivery:*").Val() {
		if k := d.keys.Parse(key).Kind; k != stored.SeenKey && k != stored.DeliveryFormatKey {
			t.Errorf("%s still exists", key)
		}
	}
}

func TestGatewaysAreHeldAndOpened(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.want(exitFailure, "gateways", "hold", "push.example.org") // no pusher uses it
	d.answers(takes)
	d.notify(alice)
	<-d.posted
	if r := d.want(exitOK, "gateways", "hold", "Push.Example.org.:0443"); !strings.Contains(r.stdout, "would hold https://push.example.org:443") {
		t.Errorf("got %s", r.stdout)
	}
	d.want(exitFailure, "gateways", "hold", "http://push.example.org") // another scheme
	d.want(exitFailure, "gateways", "hold", "push.example.org/path")
	d.want(exitOK, "gateways", "hold", "push.example.org", "-yes")
	d.until("it is held", func() bool {
		q := d.queues(alice)[0]
		if q.Notifications == 0 {
			d.notify(alice)
			select {
			case <-d.posted:
			case <-time.After(100 * time.Millisecond):
			}
		}
		return q.State == stateHeld && time.Until(q.Due) > 6*time.Second // longer than a claim
	})
	var all []shownGateway
	r := d.want(exitOK, "gateways", "-json")
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil || len(all) != 1 || all[0].HeldSince.IsZero() || all[0].Pushers != 1 {
		t.Errorf("got %+v, %v", all, err)
	}
	d.want(exitFailure, "gateways", "open", "other.example.org")
	if r := d.want(exitOK, "gateways", "open", "push.example.org", "-yes"); !strings.Contains(r.stdout, "done: open https://push.example.org:443") {
		t.Errorf("got %s", r.stdout)
	}
	d.want(exitOK, "queues", "retry", string(alice), "-yes")
	d.until("it is delivered", func() bool { return d.queues(alice)[0].Notifications == 0 })
}

func TestForgetDropsBacklogs(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.stop()
	if r := d.want(exitOK, "forget", string(alice), "-yes"); !strings.Contains(r.stdout, "drop 1 notifications of 1 pushers") {
		t.Errorf("got %s", r.stdout)
	}
	if r := d.want(exitOK, "queues", "show", string(alice)); !strings.Contains(r.stdout, "no waiting notifications") {
		t.Errorf("got %s", r.stdout)
	}
}

func TestSendTest(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	var answer atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(*answer.Load()))
	}))
	defer server.Close()
	set := func(pushkey, kind string) {
		p := aPusher(pushkey)
		p.Data, p.Kind = fmt.Sprintf(`{"url":"%s/_matrix/push/v1/notify?%s"}`, server.URL, secret), pusher.Kind(kind)
		if err := b.pushers.Update(t.Context(), alice, func(list *pusher.List) error {
			list.Set(p)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	set("1", "http")
	before := b.stored()
	send := func(status int, text string, args ...string) (all []shownTest) {
		t.Helper()
		answer.Store(&text)
		args = append([]string{"send-test", string(alice), "-json"}, args...)
		if err := json.Unmarshal([]byte(b.want(status, args...).stdout), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	local := []string{"-allowed-prefixes", "127.0.0.0/8"}
	digest := delivery.PusherID(alice, aPusher("1").Key)
	got := send(exitOK, `{"rejected":[]}`, local...)
	if len(got) != 1 || got[0].Outcome != delivery.PostDelivered || got[0].Status != 200 || got[0].Took <= 0 || got[0].Pusher != digest {
		t.Errorf("got %+v", got)
	}
	if got := send(exitProblems, `{"rejected":["`+secret+`1"]}`, local...); got[0].Outcome != delivery.PostRejected {
		t.Errorf("rejected: got %+v", got)
	}
	if got := send(exitProblems, `{}`); got[0].Outcome != delivery.PostBlocked || got[0].Status != 0 || got[0].Why == "" {
		t.Errorf("an address that is not public: got %+v", got)
	}
	for key, text := range b.stored() {
		if before[key] != text {
			t.Errorf("%s has changed", key)
		}
	}
	set("2", "email")
	if got := send(exitProblems, `{}`, local...); len(got) != 2 || !slices.ContainsFunc(got, func(s shownTest) bool { return s.Why != "" && s.Outcome == "" }) {
		t.Errorf("with one that is not sent to: got %+v", got)
	}
	if got := send(exitOK, `{}`, append(local, "-pusher", digest)...); len(got) != 1 {
		t.Errorf("to one: got %+v", got)
	}
	if r := b.want(exitOK, append([]string{"send-test", string(alice), "-pusher", digest}, local...)...); !strings.Contains(r.stdout, "delivered") {
		t.Errorf("got %s", r.stdout)
	}
	b.want(exitFailure, "send-test", string(alice), "-pusher", "x")
	b.want(exitFailure, "send-test", string(bob))
}
