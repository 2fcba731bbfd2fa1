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
	"github.com/pushfx/pushfx/integration/homeserver/inbox"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
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

func (d *delivering) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	var n struct {
		Notification struct{ Devices []struct{ Pushkey string } }
	}
	if err := json.Unmarshal(r.Body, &n); err != nil {
		return module.GatewayAnswer{}, err
	}
	pushkey := n.Notification.Devices[0].Pushkey
	answer, err := (*d.answer.Load())(pushkey)
	if err == nil && answer.Status == http.StatusOK {
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
	event := module.Event{Room: match.Room{MemberCount: 3}, JSON: fmt.Sprintf(
		`{"event_id":"$%d","room_id":"!r:x","type":"m.room.message","sender":"@bob:x","content":{"body":"%s"}}`, d.events, secret)}
	decisions, err := d.host.Notifier.Decide(ctx, event, members)
	if err == nil {
		err = d.host.Notifier.Notify(ctx, event, decisions)
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
	b.says("WAITING FOR", exitOK, "queues")
	d.away(alice)
	d.notify(alice)
	var q shownQueues
	r := b.want(exitOK, "queues", "-json")
	if err := json.Unmarshal([]byte(r.stdout), &q); err != nil || q.Users != 1 || q.Hanging != 0 || q.Stalled {
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
	late := func(trouble string) {
		log := b.keys.UserLog(alice)
		pusher := delivery.PusherID(alice, aPusher(string(alice)).Key)
		s, _ := stored.ReadPusherState(b.client.HGet(b.t.Context(), log, pusher).Val())
		b.do("HSET", log, pusher, fmt.Sprintf("%d %s %d %s %s", time.Now().Add(-time.Minute).UnixMicro(), s.Nonce, s.Number, s.Gate, stored.TroubleText(s.Generation, trouble)))
	}
	late(fmt.Sprintf(`{"n":1,"s":1,"l":%d,"c":503}`, time.Now().UnixMilli()))
	b.says("BEHIND CLOSED GATEWAYS", exitOK, "queues")
	late("")
	b.says("No host sends", exitProblems, "queues")
	b.says(stateLate, exitProblems, "queues", "show", string(alice))
}

func TestPushersAreRetried(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	for _, args := range [][]string{{string(alice)}, {"-gateway", "push.example.org"}} {
		d.says("would retry 1 of 1 pushers", exitOK, append([]string{"queues", "retry"}, args...)...)
	}
	d.answers(takes)
	d.want(exitFailure, "queues", "retry")
	d.says("done: retry 1 of 1 pushers", exitOK, "queues", "retry", string(alice), "-yes")
	d.until("it is delivered", func() bool { return d.queues(alice)[0].Notifications == 0 })
}

func TestAllBacklogsAreFlushed(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.away(carol)
	d.stop()
	for _, args := range [][]string{{"flush"}, {"flush", "-all", string(alice)}, {"flush", "-all", "-gateway", "push.example.org"}, {"retry", "-all", "-yes"}} {
		d.want(exitFailure, append([]string{"queues"}, args...)...)
	}
	d.says("would drop 2 notifications of 2 pushers (-yes does it)", exitOK, "queues", "flush", "-all")
	for _, want := range []string{"done: drop 2 notifications of 2 pushers", "nothing waits"} {
		d.says(want, exitOK, "queues", "flush", "-all", "-yes")
	}
}

func TestBacklogsAreFlushed(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.notify(alice)
	d.away(bob)
	d.stop()
	d.says("would drop 2 notifications of 1 pushers", exitOK, "queues", "flush", string(alice))
	d.says("done: drop 3 notifications of 2 pushers at https://push.example.org:443", exitOK, "queues", "flush", "-gateway", "https://push.example.org:443", "-yes")
	d.says("nothing waits", exitOK, "queues", "flush", string(alice), "-yes")
	for _, user := range []mxid.UserID{alice, bob} {
		if log, err := d.queue.Log(t.Context(), user); err != nil || len(log.Pushers) > 0 {
			t.Errorf("%s: %+v, %v", user, log, err)
		}
	}
}

func TestForgetDropsBacklogs(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.stop()
	if r := d.want(exitOK, "forget", string(alice), "-yes"); d.client.Exists(t.Context(), d.keys.UserLog(alice)).Val() > 0 {
		t.Errorf("got %s", r.stdout)
	}
	d.complains("no push rules and no pushers", exitProblems, "queues", "show", string(alice))
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
		b.plant(alice, p)
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
	got = send(exitProblems, `{}`, append(local, "-mail", "smtp://127.0.0.1:1", "-mail-from", "push@example.org")...)
	if !slices.ContainsFunc(got, func(s shownTest) bool { return s.Gateway == "" && s.Why != "" }) {
		t.Errorf("to a key that is no address: got %+v", got)
	}
	if got := send(exitProblems, `{}`, local...); len(got) != 2 || !slices.ContainsFunc(got, func(s shownTest) bool { return s.Why != "" && s.Outcome == "" }) {
		t.Errorf("with one that is not sent to: got %+v", got)
	}
	if got := send(exitOK, `{}`, append(local, "-pusher", digest)...); len(got) != 1 {
		t.Errorf("to one: got %+v", got)
	}
	b.says("delivered", exitOK, append([]string{"send-test", string(alice), "-pusher", digest}, local...)...)
	b.complains("has no pusher x", exitProblems, "send-test", string(alice), "-pusher", "x")
}

func TestSendTestMail(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	p := aPusher("")
	p.AppID, p.Pushkey, p.Kind, p.Data = pusher.EmailAppID, secret+"@example.org", pusher.Email, "{}"
	b.plant(alice, p)
	arrived, err := inbox.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer arrived.Close()
	from := []string{"send-test", string(alice), "-mail-from", "push@example.org"}
	if r := b.want(exitOK, append(from, "-mail", "smtp://"+arrived.Address())...); !strings.Contains(r.stdout, "mail://relay") || !strings.Contains(r.stdout, "delivered") {
		t.Errorf("got %s", r.stdout)
	}
	if mails, _, _ := arrived.Since(0); len(mails) != 1 || mails[0].To[0] != secret+"@example.org" || mails[0].Subject != "Test notification" || mails[0].Unsubscribe != "" {
		t.Errorf("got %+v", mails)
	}
	arrived.Close()
	b.says("failed", exitProblems, append(from, "-mail", "smtp://"+arrived.Address())...)
	b.says("-mail is not given", exitProblems, from...)
	for _, address := range []string{"smtp://mail.example.org", "mail.example.org", "smtps://user:" + secret + "@"} {
		if r := b.want(exitFailure, append(from, "-mail", address)...); !strings.HasPrefix(r.stderr, "pushctl: -mail, -mail-from: smtp: URL ") || strings.Contains(r.stderr, secret) {
			t.Errorf("%s: got %s", address, r.stderr)
		}
	}
	b.says("email 1  m.email", exitOK, "show", string(alice))
}

// Without a line of their own, all commands know pushers of web push.
func TestWebPush(t *testing.T) {
	b := onOne(t)
	d := b.deliver(8) // without a key, so that what it gets waits
	newKey := func() string { return strings.TrimSpace(runIn(t.Context(), noEnvironment, "vapid-key").stdout) }
	key := newKey()
	if key == newKey() || (webpush.Config{Key: key, Subject: "mailto:a@example.org"}).Validate() != nil {
		t.Errorf("got %s", key)
	}
	sealed := make(chan string, 9)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sealed <- r.Header.Get("Content-Encoding") + r.Header.Get("Authorization")
		w.WriteHeader(http.StatusCreated)
	}))
	defer service.Close()
	p := aPusher("")
	p.Kind, p.Data = pusher.UnstableWebPush, fmt.Sprintf(`{"url":%q,"auth":"BTBZMqHH6r4Tts7J_aSIgg"}`, service.URL+"/"+secret)
	p.Pushkey = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
	set := func(isActive bool) {
		p.Activated = isActive
		b.plant(alice, p)
	}
	set(true)
	d.notify(alice)
	gateway := "webpush://" + strings.TrimPrefix(service.URL, "http://")
	for _, args := range [][]string{{"gateways"}, {"queues", "show", string(alice)}, {"queues", "flush", "-gateway", gateway, "-yes"}} {
		b.says(gateway, exitOK, args...)
	}
	set(false)
	if r := b.want(exitOK, "show", string(alice)); !strings.Contains(r.stdout, "org.matrix.msc4174.webpush 1  app") || !strings.Contains(r.stdout, "inactive ") {
		t.Errorf("got %s", r.stdout)
	}
	args := []string{"send-test", string(alice), "-allowed-prefixes", "127.0.0.0/8"}
	b.says("-vapid-subject is not given", exitProblems, args...)
	args = append(args, "-vapid-subject", "mailto:a@example.org")
	b.complains(`make one with "pushctl vapid-key"`, exitFailure, args...)
	t.Setenv(vapidKey, key)
	if r := b.want(exitOK, args...); !strings.Contains(r.stdout, "201") || !strings.Contains(r.stdout, gateway) || strings.Contains(r.stdout, secret) {
		t.Errorf("got %s", r.stdout)
	}
	if got := <-sealed; !strings.HasPrefix(got, "aes128gcmvapid t=") {
		t.Errorf("got %s", got)
	}
}

// All commands name a pusher by the same digest, with its app and device beside it.
func TestWhichPhoneGetsNothing(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	for name, device := range map[string]string{"Old phone": "OLD", "New phone": "NEW"} {
		p := aPusher(device)
		p.AppID, p.Device, p.DeviceDisplayName = "org.example.app", device, name
		if err := d.service.Set(t.Context(), alice, p, pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
	}
	d.answers(func(pushkey string) (module.GatewayAnswer, error) {
		if strings.HasSuffix(pushkey, "OLD") {
			return module.GatewayAnswer{Status: http.StatusServiceUnavailable, RetryAfter: time.Hour}, nil
		}
		return takes(pushkey)
	})
	d.notify(alice)
	var waits []shownQueue
	d.until("the old phone waits", func() bool {
		waits = slices.DeleteFunc(d.queues(alice), func(q shownQueue) bool { return q.State != stateWaits || q.Last != "503" })
		return len(waits) == 1
	})
	d.stop()
	want := namedPusher{delivery.PusherID(alice, pusher.Key{AppID: "org.example.app", Pushkey: secret + "OLD"}), "org.example.app", "OLD", "Old phone"}
	if waits[0].namedPusher != want {
		t.Errorf("got %+v", waits[0])
	}
	for _, args := range [][]string{{"show"}, {"queues", "show"}, {"send-test"}} {
		r := d.ctl(append(args, string(alice))...)
		for _, part := range []string{want.Pusher, "org.example.app", `OLD "Old phone"`} {
			if !strings.Contains(r.stdout, part) {
				t.Errorf("%s lacks %s: %s", args, part, r.stdout)
			}
		}
		if strings.Contains(r.stdout, secret) {
			t.Errorf("%s shows a pushkey", args)
		}
	}
}

// A mistyped name must not look like success.
func TestUnknownUsersAndGatewaysAreNotFound(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.away(alice)
	d.stop()
	d.register(bob)
	if err := d.host.Pushers.Delete(t.Context(), bob, aPusher(string(bob)).Key); err != nil {
		t.Fatal(err)
	}
	nobody, before := "@nobody:example.org", d.stored()
	for _, args := range [][]string{
		{"show", nobody}, {"show", nobody, "-json"}, {"reset", nobody}, {"reset", nobody, "-yes"}, {"forget", nobody}, {"forget", nobody, "-yes"},
		{"send-test", nobody}, {"send-test", string(bob)},
		{"queues", "show", nobody}, {"queues", "show", nobody, "-json"},
		{"queues", "retry", nobody}, {"queues", "retry", nobody, "-yes"}, {"queues", "flush", nobody}, {"queues", "flush", nobody, "-yes"},
		{"queues", "retry", "-gateway", "no.example.org"}, {"queues", "flush", "-gateway", "no.example.org", "-yes"},
		{"queues", "flush", "-gateway", "http://push.example.org"}, {"queues", "flush", "-gateway", "push.example.org:8443", "-yes"},
		{"queues", "flush", string(alice), "-gateway", "no.example.org", "-yes"}, {"queues", "retry", string(bob), "-gateway", "push.example.org"},
	} {
		r := d.want(exitProblems, args...)
		who := "push.example.org"
		for _, arg := range args[1:] {
			if strings.HasPrefix(arg, "@") || strings.HasPrefix(arg, "no.") {
				who = arg
			}
		}
		if r.stdout != "" || !strings.Contains(r.stderr, who) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: got %q, %q", args, r.stdout, r.stderr)
		}
	}
	// Users without pushers and gateways without backlogs are not unknown.
	d.want(exitOK, "queues", "show", string(bob))
	d.want(exitOK, "queues", "flush", string(bob), "-yes")
	d.want(exitOK, "show", string(bob))
	for key, text := range d.stored() {
		if before[key] != text {
			t.Errorf("%s has changed", key)
		}
	}
	d.want(exitOK, "queues", "flush", "-gateway", "push.example.org", "-yes")
	if r := d.want(exitOK, "queues", "flush", "-gateway", "push.example.org", "-yes"); r.stdout != "nothing waits\n" {
		t.Errorf("got %s", r.stdout)
	}
}

// No code is invented for a mail that fails without an answer.
func TestTheLastAnswerIsOfAServer(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]delivery.Waiting{"": {Class: "status"}, "535": {Class: "status", Status: 535}, "tls": {Class: "tls"}} {
		if got := lastOf(w); got != want {
			t.Errorf("%+v: got %q", w, got)
		}
	}
}

func TestGatewayNames(t *testing.T) {
	t.Parallel()
	all := []string{
		"https://a.example:443", "https://a.example:8443", "http://a.example:80", "http://a.example:8443", "https://b.example:443",
		"https://[2001:db8::1]:443", "https://xn--bcher-kva.example:443", "mail://mail.example",
	}
	for name, want := range map[string]string{
		"a.example":                     "https://a.example:443 https://a.example:8443 http://a.example:80 http://a.example:8443",
		"A.Example.":                    "https://a.example:443 https://a.example:8443 http://a.example:80 http://a.example:8443",
		"a.example:8443":                "https://a.example:8443 http://a.example:8443",
		"a.example:08443":               "https://a.example:8443 http://a.example:8443",
		"a.example:80":                  "http://a.example:80",
		"https://a.example":             "https://a.example:443",
		"HTTPS://a.example":             "https://a.example:443",
		"http://a.example":              "http://a.example:80",
		"http://a.example:8443":         "http://a.example:8443",
		"http://a.example:443":          "",
		"example":                       "",
		"[2001:db8::1]":                 "https://[2001:db8::1]:443",
		"bücher.example":                "https://xn--bcher-kva.example:443",
		"mail://Mail.example":           "mail://mail.example",
		"mail.example":                  "mail://mail.example",
		"mail://a.example":              "",
		"":                              "error",
		"https://":                      "error",
		"https://a.example/":            "error",
		"a.example/_matrix/push/v1":     "error",
		"a.example?":                    "error",
		"a.example#":                    "error",
		"me@a.example":                  "error",
		"ftp://a.example":               "error",
		"2001:db8::1":                   "error",
		"a.example:https":               "error",
		"https://a.example https://b.c": "error",
	} {
		g, err := readGatewayName(name)
		if err != nil {
			if want != "error" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var got []string
		for _, gateway := range all {
			if g.matches(gateway) {
				got = append(got, gateway)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s matches %q, want %s", name, got, want)
		}
	}
}

// All commands read the name of a gateway alike.
func TestAGatewayThatCouldBeSeveralIsAskedFor(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	d.isAway()
	for i, url := range []string{"https://push.example.org", "http://push.example.org", "http://push.example.org:8080", "http://push.example.org:8080"} {
		user := mxid.UserID(fmt.Sprintf("@%d:example.org", i))
		p := aPusher(string(user))
		p.Data = `{"url":"` + url + `/_matrix/push/v1/notify"}`
		d.plant(user, p)
		d.notify(user)
	}
	d.stop()
	const all = "http://push.example.org:8080 (2 pushers), http://push.example.org:80 (1 pushers), https://push.example.org:443 (1 pushers)"
	for _, args := range [][]string{{"queues", "retry", "-gateway"}, {"queues", "flush", "-gateway"}} {
		for _, flags := range [][]string{nil, {"-yes"}} {
			d.complains(all, exitFailure, slices.Concat(args, []string{"push.example.org"}, flags)...)
		}
		for name, want := range map[string]string{
			"push.example.org:8080": "http://push.example.org:8080", "http://push.example.org": "http://push.example.org:80",
			"push.example.org:443": "https://push.example.org:443",
		} {
			if r := d.want(exitOK, slices.Concat(args, []string{name})...); !strings.HasSuffix(r.stdout, " "+want+" (-yes does it)\n") {
				t.Errorf("%s %s: got %s", args, name, r.stdout)
			}
		}
	}
	d.want(exitOK, "queues", "flush", "-gateway", "push.example.org:8080", "-yes")
	if r := d.want(exitFailure, "queues", "retry", "-gateway", "push.example.org"); strings.Contains(r.stderr, "8080") {
		t.Errorf("a flushed gateway: %s", r.stderr)
	}
}

// A mail waits at the gateway of all mails, also while the user's phone gets the same event.
func TestMailsAreRetriedAndFlushed(t *testing.T) {
	t.Parallel()
	d := onOne(t).deliver(8)
	p := aPusher("")
	p.AppID, p.Pushkey, p.Kind, p.Data = pusher.EmailAppID, secret+"@Example.org", pusher.Email, "{}"
	for _, user := range []mxid.UserID{alice, bob} {
		d.plant(user, p)
	}
	d.set(bob, "phone")
	d.answers(takes)
	d.notify(alice, bob)
	d.until("the phone has it", func() bool { return len(d.posted) == 1 })
	for _, at := range []string{"mail://relay", "relay"} {
		d.says("would retry 2 of 2 pushers at mail://relay", exitOK, "queues", "retry", "-gateway", at)
	}
	d.says("done: drop 2 notifications of 2 pushers at mail://relay", exitOK, "queues", "flush", "-gateway", "mail://relay", "-yes")
}
