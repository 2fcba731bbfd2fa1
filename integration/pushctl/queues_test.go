package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// delivering is a host that delivers, to a gateway that does what a test says.
type delivering struct {
	*bed
	host   *pushfx.Push
	stop   func()
	events int
	posted chan string // pushkeys of what was delivered
	answer atomic.Pointer[func(pushkey string) (module.GatewayAnswer, error)]
}

// deliver starts a host, and gives it the shards.
func (b *bed) deliver(shards int) *delivering {
	b.t.Helper()
	return b.deliverFrom(nil, shards)
}

// deliverFrom is deliver with a queue, nil for that on Redis.
func (b *bed) deliverFrom(queue module.DeliveryQueue, shards int) *delivering {
	b.t.Helper()
	d := &delivering{bed: b, posted: make(chan string, 1000)}
	d.isAway()
	cfg := pushfx.DefaultConfig()
	cfg.Delivery.Shards = shards
	var err error
	d.host, err = pushfx.New(b.client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{Gateway: d, Queue: queue}})
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

// isAway has pushers wait for an hour.
func (d *delivering) isAway() {
	d.answers(func(string) (module.GatewayAnswer, error) { return module.GatewayAnswer{}, dialguard.ErrRefused })
}

func (d *delivering) answers(answer func(pushkey string) (module.GatewayAnswer, error)) {
	d.answer.Store(&answer)
}

func takes(string) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{Status: http.StatusOK}, nil
}

func rejects(pushkey string) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{Status: http.StatusOK, Rejected: []string{pushkey}}, nil
}

// notify sends users an event. Those who have no pusher get one.
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

// queues are what is to be delivered to a user's pushers.
func (b *bed) queues(user mxid.UserID) (all []shownQueue) {
	b.t.Helper()
	r := b.want(exitOK, "queues", "show", string(user), "-json")
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil {
		b.t.Fatal(err)
	}
	return all
}

// until waits for something.
func (b *bed) until(what string, is func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("it does not come to this: %s", what)
		}
	}
}

// away has notifications wait for a user's pusher, whose address is refused.
func (d *delivering) away(user mxid.UserID) {
	d.t.Helper()
	d.isAway()
	d.notify(user)
	d.until("the pusher is blocked", func() bool {
		all := d.client.HGetAll(d.t.Context(), d.keys.ShardHeld(delivery.ShardOf(user, d.shards()))).Val()
		for _, data := range all {
			if held, err := delivery.ReadHeld([]byte(data)); err == nil && held.User == user && held.Outcome == delivery.PostBlocked {
				return true
			}
		}
		return false
	})
}

func (b *bed) shards() int {
	b.t.Helper()
	n, err := b.shardCount(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestQueuesAreShown(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	if r := b.ctl("queues"); r.status != exitFailure || !strings.Contains(r.stderr, "no queue") {
		t.Errorf("without a queue: status %d, %s", r.status, r.stderr)
	}
	d := b.deliver(8)
	defer d.stop()
	d.away(alice)
	all := b.queues(alice)
	q, set := all[0], b.generation(alice)
	if len(all) != 1 || q.State != isBlocked || q.Outcome != delivery.PostBlocked || q.Kept != 1 || q.Dropped != 0 ||
		q.Generation != set || q.Since.IsZero() || q.Due.Sub(q.Since) < 50*time.Minute || q.Gateway != "https://push.example.org:443" {
		t.Errorf("got %+v, set at %d", all, set)
	}
	if r := b.want(exitOK, "queues", "show", string(alice)); !strings.Contains(r.stdout, "last outcome  blocked") {
		t.Errorf("got %s", r.stdout)
	}
	if r := b.want(exitOK, "queues", "show", string(bob)); !strings.Contains(r.stdout, "no pushers") {
		t.Errorf("of another user: %s", r.stdout)
	}
	b.set(bob, "well")
	if all := b.queues(bob); len(all) != 1 || all[0].State != isWell || all[0].Kept != 0 || all[0].Generation != b.generation(bob) {
		t.Errorf("of one who is well: %+v", all)
	}
	b.want(exitFailure, "queues", "show", "bob")
	if r := b.want(exitOK, "queues"); !strings.Contains(r.stdout, "8 of 8") || strings.Contains(r.stdout, "nobody") {
		t.Errorf("got %s", r.stdout)
	}
	if r := b.want(exitOK, "check"); !strings.Contains(r.stdout, " 1 pushers in trouble") {
		t.Errorf("check does not know the keys of delivery: %s", r.stdout)
	}
	d.stop()
	if r := b.want(exitProblems, "queues"); !strings.Contains(r.stdout, "nobody  8 of 8") {
		t.Errorf("without a host: %s", r.stdout)
	}
	r := b.want(exitProblems, "queues", "retry", string(alice))
	if !strings.Contains(r.stdout, "retry 0 pushers") || !strings.Contains(r.stdout, "no host owns it") {
		t.Errorf("without a host: %s", r.stdout)
	}
}

// generation is when a user's pusher was set.
func (b *bed) generation(user mxid.UserID) int64 {
	b.t.Helper()
	list, err := b.pushers.Load(b.t.Context(), user)
	if err != nil || list.Len() != 1 {
		b.t.Fatalf("%d pushers, %v", list.Len(), err)
	}
	return list.All()[0].SetAt
}

// eachQueue runs a test on a single server and on a cluster.
func eachQueue(t *testing.T, test func(d *delivering)) {
	t.Helper()
	redistest.Require(t)
	for name, newBedOn := range map[string]func(*testing.T) *bed{
		"single": onOne,
		"cluster": func(t *testing.T) *bed {
			return newBed(t, "-redis-mode", "cluster", "-redis", strings.Join(redistest.Cluster(t, 3, 0).Addrs(), ","))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newBedOn(t).deliver(8)
			defer d.stop()
			test(d)
		})
	}
}

// wantDone runs a command that changes something, first without changing it.
func (d *delivering) wantDone(done string, args ...string) {
	d.t.Helper()
	if r := d.want(exitOK, append(args, "-dry-run")...); r.stdout != "would "+done+"\n" {
		d.t.Errorf("%s, with -dry-run: got %s", strings.Join(args, " "), r.stdout)
	}
	if r := d.want(exitOK, args...); r.stdout != "done: "+done+"\n" {
		d.t.Errorf("%s: got %s", strings.Join(args, " "), r.stdout)
	}
}

func TestPushersAreRetried(t *testing.T) {
	t.Parallel()
	eachQueue(t, func(d *delivering) {
		for _, by := range [][]string{{string(alice)}, {"-gateway", "push.example.org"}, {"-gateway", "HTTPS://push.example.org:443"}} {
			d.away(alice)
			d.answers(takes)
			d.wantDone("retry 0 pushers", "queues", "retry", "-gateway", "push.example.or")
			d.wantDone("retry 0 pushers", "queues", "retry", string(bob))
			d.wantDone("retry 1 pushers", append([]string{"queues", "retry"}, by...)...)
			select {
			case <-d.posted:
			case <-time.After(time.Minute):
				d.t.Fatalf("%s: nothing is sent", by)
			}
			d.until("the pusher is well", func() bool { return d.queues(alice)[0].State == isWell })
		}
		d.want(exitFailure, "queues", "retry")
	})
}

func TestWhatWaitsIsFlushed(t *testing.T) {
	t.Parallel()
	eachQueue(t, func(d *delivering) {
		for _, by := range [][]string{{string(alice)}, {"-gateway", "push.example.org:443"}, {"-older", "1ms"}} {
			d.away(alice)
			d.wantDone("flush 0 pushers, 0 notifications", "queues", "flush", string(bob))
			d.wantDone("flush 0 pushers, 0 notifications", "queues", "flush", string(alice), "-older", "1h")
			d.wantDone("flush 1 pushers, 1 notifications", append([]string{"queues", "flush"}, by...)...)
			if q := d.queues(alice)[0]; q.State != isWell || q.Kept != 0 {
				d.t.Errorf("%s: got %+v", by, q)
			}
		}
		d.want(exitFailure, "queues", "flush")
		d.want(exitFailure, "queues", "flush", "-older", "-1h")
		d.answers(takes)
		d.notify(alice)
		<-d.posted
	})
}

// unread is a queue whose logs cannot be read until somebody says so.
type unread struct {
	module.DeliveryQueue
	readable atomic.Bool
}

func (q *unread) Read(ctx context.Context, shard int, after string, limit int) ([]module.LogEntry, error) {
	if !q.readable.Load() {
		return nil, module.Unavailable(errors.New("not now"))
	}
	return q.DeliveryQueue.Read(ctx, shard, after, limit)
}

// What a host has not read yet is dropped when it does.
func TestALogIsFlushedThatIsNotReadYet(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	queue := &unread{DeliveryQueue: b.queue}
	d := b.deliverFrom(queue, 1)
	defer d.stop()
	d.answers(takes)
	for range 3 {
		d.notify(alice, bob)
	}
	const rest = "and what is to be dropped of up to 3 events in the logs of 1 shards"
	d.until("the shard has an owner", func() bool { return d.ctl("queues").status == exitOK })
	for _, args := range [][]string{{string(alice)}, {"-older", "1h"}} {
		args = append([]string{"queues", "flush"}, args...)
		if r := d.want(exitOK, append(args, "-dry-run")...); r.stdout != "would flush 0 pushers, 0 notifications\n"+rest+"\n" {
			t.Errorf("%s, with -dry-run: got %s", args, r.stdout)
		}
		if r := d.want(exitOK, args...); r.stdout != "done: flush 0 pushers, 0 notifications\n"+rest+", when their hosts read them\n" {
			t.Errorf("%s: got %s", args, r.stdout)
		}
	}
	queue.readable.Store(true)
	d.notify(alice)
	got := map[string]int{}
	for range 4 {
		got[<-d.posted]++
	}
	if want := map[string]int{secret + string(alice): 1, secret + string(bob): 3}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Of a log that nobody owns nothing is dropped, and that is said.
func TestNothingIsFlushedWithoutAHost(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	d := b.deliver(2)
	d.stop()
	for range 2 {
		d.notify(alice, bob, "@carol:example.org", "@dave:example.org")
	}
	r := b.want(exitProblems, "queues", "flush", "-gateway", "push.example.org")
	if r.stdout != "done: flush 0 pushers, 0 notifications\nshard 0, 1: nothing of its log, for no host owns it\n" {
		t.Errorf("got %s", r.stdout)
	}
}

func TestRejectionsAreDecided(t *testing.T) {
	t.Parallel()
	const many = 70
	eachQueue(t, func(d *delivering) {
		var users []mxid.UserID
		for i := range many {
			users = append(users, mxid.UserID(fmt.Sprintf("@u%d:example.org", i)))
		}
		d.answers(rejects)
		d.notify(users...)
		for range many {
			<-d.posted
		}
		left := func() (n int) { // the first few are removed within seconds
			for _, result := range d.pushers.LoadMany(d.t.Context(), users) {
				n += result.Value.Len()
			}
			return n
		}
		rejected := func() bool {
			var all []shownRejections
			r := d.want(exitOK, "rejections", "list", "-json")
			if err := json.Unmarshal([]byte(r.stdout), &all); err != nil {
				d.t.Fatal(err)
			}
			return len(all) == 1 && all[0].Pushers > 50 && all[0].Pushers == left()
		}
		d.until("the rejections are shown", rejected)
		if r := d.want(exitOK, "rejections", "list", "-gateway", "push.example.org"); !strings.Contains(r.stdout, "https://push.example.org:443") {
			d.t.Errorf("got %s", r.stdout)
		}
		d.wantDone("release 0 pushers", "rejections", "release", "-gateway", "other.example.org")
		if r := d.want(exitOK, "rejections", "release", "-dry-run"); !strings.HasPrefix(r.stdout, "would release ") {
			d.t.Errorf("with -dry-run: got %s", r.stdout)
		}
		d.until("they are rejected still", rejected)
		d.want(exitOK, "rejections", "release")
		if r := d.want(exitOK, "rejections", "list"); !strings.Contains(r.stdout, "No pusher") || left() < 50 {
			d.t.Errorf("after they were released: %s", r.stdout)
		}
		d.notify(users...) // and they are rejected again
		d.until("the rejections are shown again", rejected)
		if r := d.want(exitOK, "rejections", "confirm"); !strings.HasPrefix(r.stdout, "done: confirm ") {
			d.t.Errorf("got %s", r.stdout)
		}
		d.until("the pushers are removed", func() bool { return left() == 0 })
	})
}

func TestGatewaysAreHeldAndOpened(t *testing.T) {
	t.Parallel()
	const name = "https://push.example.org:443"
	eachQueue(t, func(d *delivering) {
		gateways := func() (all []shownGateway) {
			d.t.Helper()
			if err := json.Unmarshal([]byte(d.want(exitOK, "gateways", "-json").stdout), &all); err != nil {
				d.t.Fatal(err)
			}
			return all
		}
		if all := gateways(); len(all) != 0 {
			d.t.Errorf("at first: %+v", all)
		}
		d.want(exitFailure, "gateways", "open", "push.example.org")
		d.away(alice)
		if all := gateways(); len(all) != 1 || all[0].Gateway != name || all[0].State != module.GatewayOpen || all[0].Pushers != 1 || all[0].Waiting != 1 {
			d.t.Errorf("with a pusher in trouble: %+v", all)
		}
		d.wantDone("flush 1 pushers, 1 notifications", "queues", "flush", string(alice))

		d.wantDone("hold "+name, "gateways", "hold", "push.example.org")
		d.answers(takes)
		for held := false; !held; { // the host hears of it with its next exchange
			d.notify(bob)
			select {
			case <-d.posted:
			case <-time.After(10 * time.Millisecond):
				held = len(d.queues(bob)) == 1 && d.queues(bob)[0].State == isHeldUp
			}
		}
		all := gateways()
		if len(all) != 1 || all[0].State != module.GatewayHeld || all[0].Since.IsZero() || all[0].Waiting == 0 {
			d.t.Errorf("held: %+v", all)
		}
		if r := d.want(exitOK, "gateways"); !strings.Contains(r.stdout, name+"\n  state               held") {
			d.t.Errorf("got %s", r.stdout)
		}
		d.wantDone("open "+name, "gateways", "open", "push.example.org")
		select {
		case <-d.posted:
		case <-time.After(time.Minute):
			d.t.Error("nothing is sent after it was opened")
		}
		d.until("nothing waits", func() bool { return len(gateways()) == 0 })
		for _, bad := range []string{"", "https://push.example.org/path", "ht tp://x"} {
			d.want(exitFailure, "gateways", "hold", bad)
		}
	})
}

func TestWhatWaitsIsForgottenWithItsUser(t *testing.T) {
	t.Parallel()
	eachQueue(t, func(d *delivering) {
		d.away(alice)
		d.away(bob)
		r := d.want(exitOK, "forget", "-yes", string(alice))
		if !strings.Contains(r.stdout, "drop 1 notifications that waited for 1 pushers") {
			d.t.Errorf("got %s", r.stdout)
		}
		if all := d.queues(alice); len(all) != 0 {
			d.t.Errorf("it is left: %+v", all)
		}
		if all := d.queues(bob); len(all) != 1 || all[0].Kept != 1 {
			d.t.Errorf("another user has %+v", all)
		}
		d.stop()
		r = d.want(exitFailure, "forget", "-yes", string(bob))
		if !strings.Contains(r.stderr, "no host owns it") {
			d.t.Errorf("without a host: %s", r.stderr)
		}
	})
}

// A host of a version that knows no instructions goes on as if there were none.
func TestAHostThatDoesNotAnswerIsTold(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(1)
	d.away(alice)
	d.stop()
	d.do("HSET", d.keys.ShardState(0), "owner", "x", "ends", time.Now().Add(time.Hour).UnixMilli(), "lasts", time.Hour.Milliseconds())
	if r := d.want(exitProblems, "queues", "retry", string(alice)); !strings.Contains(r.stdout, "has not answered") {
		t.Errorf("got %s", r.stdout)
	}
	if n := d.client.Exists(t.Context(), d.keys.ShardInstructions(0)).Val(); n != 0 {
		t.Error("the instruction is left")
	}
}

func TestATestIsSent(t *testing.T) {
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
