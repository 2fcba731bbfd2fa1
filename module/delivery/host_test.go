package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
)

// world has a queue, users, hosts and push gateways.
type world struct {
	t     *testing.T
	began time.Time
	queue *queuetest.Memory
	cfg   Config

	mu        sync.Mutex
	rules     *ruleStore
	pushers   map[mxid.UserID]pusher.List
	removed   []mxid.UserID
	reading   func() error // called when pushers are read
	gateways  map[string]func(context.Context, sent) (module.GatewayAnswer, error)
	posts     []sent
	arrived   map[string][]string // events by pushkey
	underWay  map[string]int      // by pushkey
	overlaps  int
	unread    module.Unread
	attention module.Attention
	mailbox   *mailbox      // nil without mail
	sending   mail.Config   // of mails
	mailer    module.Mailer // of the next host, nil for the mailbox
	webPush   webpush.Config
	dropped   map[DropReason]int
	counts    map[string]int // by event and label
	reports   []observe.Problem
	late      []*LateError
	rejected  []RejectedError
	sets      int64
	failing   atomic.Pointer[error]
}

// sent is a request.
type sent struct {
	at      time.Time
	began   time.Time
	url     string
	body    string
	event   string
	pushkey string
	idOnly  bool
	status  int // of the answer, 0 for none
	counts  *module.Counts
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, began: time.Now(), queue: queuetest.NewMemory(), cfg: DefaultConfig(), sending: mail.DefaultConfig(), rules: newRuleStore(), pushers: map[mxid.UserID]pusher.List{},
		gateways: map[string]func(context.Context, sent) (module.GatewayAnswer, error){}, underWay: map[string]int{},
		dropped: map[DropReason]int{}, counts: map[string]int{}, arrived: map[string][]string{}, reading: func() error { return nil },
	}
	w.queue.Fail = func(string, mxid.UserID) error {
		if err := w.failing.Load(); err != nil {
			return *err
		}
		return nil
	}
	return w
}

func (w *world) host() *Delivery {
	d, _ := w.hostOn(w.queue, w)
	return d
}

// stopped returns a host that does not send.
func (w *world) stopped(queue module.DeliveryQueue, gateway module.Gateway) *Delivery {
	w.t.Helper()
	seams := Seams{
		Queue: queue, Gateway: gateway, Host: &worldHost{w.rules, w}, Feed: newFeed(w.t, w.rules), Unread: w.unread, Attention: w.attention,
		Observer: worldObserver{observe.None, w}, WebPush: w.webPush,
	}
	if w.mailbox != nil {
		seams.Mailer, seams.MailComposer, seams.ConfirmAddress, seams.Mail = w.mailbox, w.mailbox, w.mailbox.confirm, w.sending
		if w.mailer != nil {
			seams.Mailer = w.mailer
		}
	}
	d, err := New(seams, w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// hostOn starts a host, and returns when it has looked for the first time. It stops at the end of the test, or before.
func (w *world) hostOn(queue module.DeliveryQueue, gateway module.Gateway) (d *Delivery, stop func()) {
	w.t.Helper()
	d = w.stopped(queue, gateway)
	if err := d.Check(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	w.t.Cleanup(stop)
	synctest.Wait()
	return d, stop
}

// set sets a pusher of the app "app".
func (w *world) set(user mxid.UserID, pushkey, gateway string) {
	w.setApp(user, "app", pushkey, gateway)
}

func (w *world) setApp(user mxid.UserID, app, pushkey, gateway string) {
	data := fmt.Sprintf(`{"url":"https://%s%s"}`, gateway, pusher.NotifyPath)
	w.setPusher(user, pusher.Pusher{Key: pusher.Key{AppID: app, Pushkey: pushkey}, Kind: pusher.HTTP, Data: data})
}

func (w *world) setPusher(user mxid.UserID, p pusher.Pusher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets++
	p.SetAt = 1_700_000_000_000_000 + w.sets
	list := w.pushers[user]
	list.Set(p)
	w.pushers[user] = list
}

// answer sets the answers of a gateway.
func (w *world) answer(gateway string, f func(context.Context, sent) (module.GatewayAnswer, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gateways[gateway] = f
}

func always(status int) func(context.Context, sent) (module.GatewayAnswer, error) {
	return func(context.Context, sent) (module.GatewayAnswer, error) {
		return module.GatewayAnswer{Status: status}, nil
	}
}

// Post is every gateway. The default answer is 200.
func (w *world) Post(ctx context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	url, got := r.URL, readSent(r.URL, string(r.Body))
	w.mu.Lock()
	if w.underWay[url+got.pushkey]++; w.underWay[url+got.pushkey] > 1 {
		w.overlaps++
	}
	answer := w.gateways[gatewayName(url)]
	w.mu.Unlock()
	if answer == nil {
		answer = always(200)
	}
	reply, err := answer(ctx, got)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underWay[url+got.pushkey]--
	got.at = time.Now()
	if err == nil {
		got.status = reply.Status
	}
	w.posts = append(w.posts, got)
	w.arrived[got.pushkey] = append(w.arrived[got.pushkey], got.event)
	return reply, err
}

func gatewayName(url string) string { return url[len("https://") : len(url)-len(pusher.NotifyPath)] }

func readSent(url, body string) sent {
	var n struct {
		Notification struct {
			EventID string `json:"event_id"`
			Type    string
			Counts  *module.Counts
			Devices []struct{ Pushkey string }
		}
	}
	if err := json.Unmarshal([]byte(body), &n); err != nil || len(n.Notification.Devices) != 1 {
		panic(fmt.Sprintf("a gateway got %s: %v", body, err))
	}
	return sent{
		began: time.Now(), url: url, body: body, event: n.Notification.EventID, pushkey: n.Notification.Devices[0].Pushkey,
		idOnly: n.Notification.Type == "", counts: n.Notification.Counts,
	}
}

// got returns the events that arrived at a pusher, in the order of the answers.
func (w *world) got(pushkey string) (events []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arrived[pushkey]
}

func (w *world) all() []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]sent(nil), w.posts...)
}

func (w *world) drops(reason DropReason) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped[reason]
}

type worldHost struct {
	*ruleStore
	w *world
}

func (h *worldHost) Pushers(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	err := h.w.reading()
	lists := map[mxid.UserID]module.Result[pusher.List]{}
	for _, user := range users {
		lists[user] = module.Result[pusher.List]{Value: h.w.pushers[user], Err: err}
	}
	return lists
}

func (h *worldHost) RemovePusher(_ context.Context, user mxid.UserID, key pusher.Key, setAt int64) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	list := h.w.pushers[user]
	if len(list.Remove(func(p pusher.Pusher) bool { return p.Key == key && p.SetAt == setAt })) > 0 {
		h.w.removed = append(h.w.removed, user)
	}
	h.w.pushers[user] = list
	return nil
}

func newFeed(t testing.TB, store module.RuleStore) *feed.Feed {
	t.Helper()
	feed, err := feed.New(module.Stores{Rules: store}, feed.DefaultConfig(), nil, feed.Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

type worldObserver struct {
	observe.Observer
	w *world
}

func (o worldObserver) Count(event observe.Event, reason string, n int) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.w.counts[fmt.Sprint(event, " ", reason)] += n
	if event != observe.NotificationDropped {
		return
	}
	o.w.dropped[DropReason(reason)] += n
}

func (o worldObserver) Report(problem observe.Problem, err error) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	if late := new(LateError); errors.As(err, &late) {
		o.w.late = append(o.w.late, late)
	}
	if rejected := new(RejectedError); errors.As(err, &rejected) {
		o.w.rejected = append(o.w.rejected, *rejected)
	}
	o.w.reports = append(o.w.reports, problem)
}

func (w *world) counted(event observe.Event, reason FailReason) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[fmt.Sprint(event, " ", reason)]
}

func (w *world) reported(problem observe.Problem) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.reports {
		if p == problem {
			n++
		}
	}
	return n
}

func (w *world) notify(d *Delivery, id int, room string, users ...mxid.UserID) {
	w.t.Helper()
	if err := w.tryNotify(d, id, room, users...); err != nil {
		w.t.Fatal(err)
	}
}

// event notifies of an event with more than a text, or of another type.
func (w *world) event(d *Delivery, event string, users ...mxid.UserID) {
	w.t.Helper()
	if err := w.send(d, module.Event{JSON: event}, users...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) badge(d *Delivery, users ...mxid.UserID) {
	w.t.Helper()
	if err := d.UpdateBadges(w.t.Context(), users...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryNotify(d *Delivery, id int, room string, users ...mxid.UserID) error {
	return w.send(d, message(id, room), users...)
}

func message(id int, room string) module.Event {
	return module.Event{Room: match.Room{MemberCount: 3}, JSON: fmt.Sprintf(
		`{"event_id":"$%d","room_id":"%s","type":"m.room.message","sender":"@sender:h","content":{"body":"hi","msgtype":"m.text"}}`, id, room)}
}

func (w *world) send(d *Delivery, e module.Event, users ...mxid.UserID) error {
	e.Room.MemberCount = 3
	ctx := context.Background()
	decisions, err := d.Decide(ctx, e, membersOf(users))
	return errors.Join(err, d.Notify(ctx, e, decisions))
}

func (w *world) decide(d *Delivery, e module.Event, users ...mxid.UserID) module.Decisions {
	w.t.Helper()
	decisions, err := d.Decide(w.t.Context(), e, membersOf(users))
	if err != nil {
		w.t.Fatal(err)
	}
	return decisions
}

func membersOf(users []mxid.UserID) []match.Member {
	members := make([]match.Member, len(users))
	for i, user := range users {
		members[i].User = user
	}
	return members
}

func name(i int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@u%d:h", i)) }

func key(i int) string { return fmt.Sprintf("key%d", i) }

func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newWorld(t)) })
}

func TestANotificationIsSent(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.host()
		for i := range 20 {
			w.set(name(i), key(i), "gw")
		}
		w.set("@sender:h", "own", "gw")
		time.Sleep(2 * time.Second)
		began := time.Now()
		for e := range 5 {
			w.notify(d, e, "!room:h", name(0), name(1), name(2), name(3), name(4), name(5), "@sender:h", "@none:h")
		}
		synctest.Wait()
		for i := range 6 {
			if got, want := fmt.Sprint(w.got(key(i))), "[$0 $1 $2 $3 $4]"; got != want {
				t.Errorf("pusher %d got %s, want %s", i, got, want)
			}
		}
		w.want("own")
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		if n := w.queue.Waiting(); n != 0 {
			t.Errorf("%d notifications are left", n)
		}
	})
}

// want checks the events that have arrived at a pusher, in order.
func (w *world) want(pushkey string, events ...int) {
	w.t.Helper()
	var want []string
	for _, e := range events {
		want = append(want, fmt.Sprintf("$%d", e))
	}
	if got := w.got(pushkey); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s got %v, want %v", pushkey, got, want)
	}
}

func (w *world) delivered(pushkey string) (all []sent) {
	for _, s := range w.all() {
		if s.pushkey == pushkey && s.status >= 200 && s.status < 300 {
			all = append(all, s)
		}
	}
	return all
}

// unset removes the pushers of a user.
func (w *world) unset(user mxid.UserID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pushers, user)
}

// fail sets the error of the queue.
func (w *world) fail(err error) { w.failing.Store(&err) }

func (w *world) log(user mxid.UserID) module.Log {
	w.t.Helper()
	log, err := w.queue.Log(w.t.Context(), user)
	if err != nil {
		w.t.Fatal(err)
	}
	return log
}
