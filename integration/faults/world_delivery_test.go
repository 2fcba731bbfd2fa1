package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

// Three hosts send notifications, to browsers and by a push gateway, one of them through a proxy that loses answers of Redis. The gateway loses answers,
// too. No notification may be lost.
func TestChaosLosesNoNotification(t *testing.T) {
	t.Parallel()
	play(t,
		row{name: "standalone", servers: singleServer(), work: notifications{lossy: true}, faults: []chaosFault{hostKilled, hostPaused, hostStopped, serverFrozenForLong}},
		row{name: "cluster", servers: clusterOf3(1), work: notifications{}, faults: []chaosFault{slotsMoved, failoverByHand}},
	)
}

// Writes wait for a replica while masters of users' logs are killed and frozen.
func TestChaosOfCrashesLosesNoNotification(t *testing.T) {
	t.Parallel()
	play(t, row{
		name: "cluster", servers: clusterOf3(1), work: notifications{durability: replicated},
		faults: []chaosFault{masterAhead, hostPausedMasterKilled, masterReplaced},
	})
}

func TestNotificationsContinueWithinSixSecondsOfAKill(t *testing.T) {
	t.Parallel()
	play(t, row{
		name: "standalone", servers: singleServer(), work: notifications{within: 6 * time.Second},
		faults: []chaosFault{hostGone},
	})
}

const (
	chaosPushers  = 40                    // users, with a pusher each
	chaosMembers  = 10                    // members of an event
	chaosTimeout  = 2 * time.Second       // time until a client asks another host
	chaosSettled  = 2 * time.Second       // after a pause, when the host may repeat requests
	chaosDoubled  = chaosPushers          // notifications that one host may repeat after a fault
	chaosPatience = 90 * time.Second      // until the last notification has arrived
	chaosInterval = 40 * time.Millisecond // between events, so that no backlog overflows in half a minute

	chaosEvent = `{"event_id":"%s","room_id":"!r:x","type":"m.room.message","sender":"@sender:x","content":{}}`
)

// notifications is the work of three processes that send events to users of one gateway.
type notifications struct {
	durability rediscommit.Durability
	lossy      bool          // a host loses replies of Redis, which is a single server
	within     time.Duration // no notification may be later; 0 means no limit. The gateway is slow then, but loses no answers.
}

func (n notifications) start(w *world) func(context.Context, *strike) (history, error) {
	gateway := newChaosGateway(w.t, n.within > 0)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	w.t.Cleanup(client.CloseIdleConnections)
	push, err := pushfx.New(w.admin, hosttest.WithWebPush(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err != nil {
		w.t.Fatal(err)
	}
	for n := range chaosPushers + chaosHosts {
		user := chaosMember(n)
		p := hosttest.PusherAt(gateway.url, string(user))
		if n%2 == 1 {
			p = gateway.subscribe(w.t, user)
		}
		if err := hosttest.Persist(func() error {
			result, err := push.Host.Import(w.t.Context(), user, module.Import{Pushers: []pusher.Pusher{p}}, module.StoreImport)
			return errors.Join(err, refusedIn(result))
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	for host := range chaosHosts {
		redis := strings.Join(w.addrs(), ",")
		if n.lossy && host == 0 {
			proxy := redistest.NewProxy(w.t, w.nodes[0])
			for n := range 1000 {
				proxy.CutReply(200*(n+1), "EVALSHA", "EXEC", "LRANGE")
			}
			redis = proxy.Addr()
		}
		p := &process{redis: redis, durability: n.durability}
		p.start(w.t)
		w.processes = append(w.processes, p)
	}
	h := &deliveryHistory{notifications: n, gateway: gateway, client: client, sent: map[string]sentEvent{}}
	return func(ctx context.Context, s *strike) (history, error) {
		s.around = 500 * time.Millisecond
		h.s, h.strikes = s, append(h.strikes, s)
		return h, h.addPlaces(ctx)
	}
}

const chaosHosts = 3

func chaosMember(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%02d:x", n)) }

// process is a host that a fault can kill.
type process struct {
	redis      string // addresses
	durability rediscommit.Durability
	*deliveryHost
	mu sync.Mutex
}

func (p *process) start(t *testing.T) {
	host := startDeliveryHost(t, p.redis, p.durability)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deliveryHost = host
}

func (p *process) now() *deliveryHost {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deliveryHost
}

// chaosGateway loses one of twenty answers to notifications that it has received.
type chaosGateway struct {
	receiver.Recorder
	*receiver.Receiver
	url         string
	count, lost atomic.Int64
	slow        bool                         // and reliable
	browsers    map[string]*hosttest.Browser // by the path of their subscription
}

// subscribe returns an active pusher of a browser. The gateway is also its push service.
func (g *chaosGateway) subscribe(t *testing.T, user mxid.UserID) pusher.Pusher {
	b, path := hosttest.NewSubscription(t, "app"), "/"+url.PathEscape(string(user))
	g.browsers[path] = b
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: hosttest.Encode64(b.Key.PublicKey().Bytes())}, Kind: pusher.WebPush, Activated: true, Lang: "en",
		Data: fmt.Sprintf(`{"url":%q,"auth":%q}`, strings.TrimSuffix(g.url, receiver.Path)+path, hosttest.Encode64(b.Auth)),
	}
}

// opened returns what a browser gets as a request to a push gateway, with the user as its pushkey.
func (g *chaosGateway) opened(r *http.Request) *http.Request {
	b := g.browsers[r.URL.EscapedPath()]
	if b == nil {
		return r
	}
	sealed, _ := io.ReadAll(r.Body)
	text, err := b.Open(sealed)
	if err != nil {
		text = "{" // is refused
	}
	user, _ := url.PathUnescape(r.URL.EscapedPath()[1:])
	body := fmt.Sprintf(`{"notification":%s,"devices":[{"app_id":"app","pushkey":%q}]}}`, strings.TrimSuffix(text, "}"), user)
	r = r.Clone(r.Context())
	r.URL.Path, r.Body = receiver.Path, io.NopCloser(strings.NewReader(body))
	return r
}

func refusedIn(result module.ImportResult) (err error) {
	for _, refused := range result.Pushers.Refused {
		err = errors.Join(err, refused.Err)
	}
	return err
}

func newChaosGateway(t *testing.T, slow bool) *chaosGateway {
	g := &chaosGateway{slow: slow, browsers: map[string]*hosttest.Browser{}}
	g.Receiver = receiver.New(g.Add)
	g.Make(receiver.Trouble{Delay: 3 * time.Millisecond})
	if slow {
		g.Make(receiver.Trouble{Delay: 200 * time.Millisecond})
	}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	g.url = server.URL + receiver.Path
	return g
}

func (g *chaosGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.Receiver.ServeHTTP(w, g.opened(r))
	if !g.slow && g.count.Add(1)%20 == 0 {
		g.lost.Add(1)
		panic(http.ErrAbortHandler)
	}
}

// deliveryHistory is all rounds so far, since hosts may repeat a notification in a later round.
type deliveryHistory struct {
	notifications
	gateway *chaosGateway
	client  *http.Client
	s       *strike // of this round
	strikes []*strike

	mu   sync.Mutex
	sent map[string]sentEvent // by event id
}

type sentEvent struct {
	members []mxid.UserID
	at      time.Time // before a host was asked to send it
}

// addPlaces adds logs of users and shards of the index.
func (h *deliveryHistory) addPlaces(ctx context.Context) error {
	for _, n := range h.s.random.Perm(chaosPushers)[:8] {
		h.s.places = append(h.s.places, &place{name: string(chaosMember(n)), keys: []string{stored.Keys{}.UserLog(chaosMember(n))}})
	}
	for _, n := range h.s.random.Perm(redisqueue.DefaultShards)[:4] {
		h.s.places = append(h.s.places, &place{keys: []string{stored.Keys{}.ShardGates(n)}})
	}
	for _, p := range h.s.places {
		var err error
		if p.home, err = h.s.masterOf(ctx, p.slot()); err != nil {
			return err
		}
	}
	return nil
}

// work sends one event after the other. A host must accept an event before work sends the next.
func (h *deliveryHistory) work(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, uint64(h.s.number)))
	for n := 0; ctx.Err() == nil; n++ {
		var members []mxid.UserID
		count := chaosMembers
		if h.gateway.slow { // which gets each user's notifications one at a time
			count /= 3
		}
		for _, user := range random.Perm(chaosPushers)[:count] {
			members = append(members, chaosMember(user))
		}
		event := fmt.Sprintf("$%03d-%06d", h.s.number, n)
		for host := n; !h.ask(host, event, members...); host++ {
			if h.s.t.Context().Err() != nil {
				return
			}
		}
		time.Sleep(chaosInterval)
	}
}

// ask asks a host to send an event.
func (h *deliveryHistory) ask(host int, event string, members ...mxid.UserID) (taken bool) {
	h.mu.Lock()
	if _, again := h.sent[event]; !again {
		h.sent[event] = sentEvent{members, time.Now()}
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.s.t.Context(), chaosTimeout)
	defer cancel()
	return h.s.processes[host%chaosHosts].now().send(ctx, h.client, sendRequest{Event: fmt.Sprintf(chaosEvent, event), Members: members})
}

// waitServed waits until each host has sent an event to a user of its own.
func (h *deliveryHistory) waitServed(ctx context.Context) error {
	for host := range chaosHosts {
		event := fmt.Sprintf("$%03d-%d-%020d", h.s.number, host, h.s.now())
		for !h.ask(host, event, chaosMember(chaosPushers+host)) {
			if err := sleep(ctx, chaosInterval); err != nil {
				return fmt.Errorf("host %d takes no event: %w", host, err)
			}
		}
	}
	return nil
}

// arrivals are the notifications of each pusher, sorted by their start.
type arrivals map[string][]receiver.Notification

// wait returns the notifications when all have arrived.
func (h *deliveryHistory) wait(ctx context.Context) (arrivals, error) {
	ctx, cancel := context.WithTimeout(ctx, chaosPatience)
	defer cancel()
	for {
		all, more := h.gateway.All()
		by, seen, missing := arrivals{}, map[string]bool{}, 0
		for _, n := range all {
			pushkey := n.Devices[0].Pushkey
			by[pushkey] = append(by[pushkey], n)
			seen[pushkey+n.EventID] = true
		}
		for event, sent := range h.sent {
			for _, user := range sent.members {
				if !seen[string(user)+event] {
					missing++
				}
			}
		}
		if missing == 0 {
			return by, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d notifications of %d events are lost", missing, len(h.sent))
		}
	}
}

// judge checks the promises: nothing lost, order, one request at a time, few repetitions, and nothing too late.
func (h *deliveryHistory) judge(ctx context.Context, s *strike) error {
	by, err := h.wait(ctx)
	if err != nil {
		return err
	}
	total, doubled, late := 0, 0, 0
	var calm, longest time.Duration // of the round's events before the fault, and of all
	for pushkey, all := range by {
		slices.SortFunc(all, func(a, b receiver.Notification) int { return a.Began.Compare(b.Began) })
		seen, last := map[string]bool{}, ""
		for i, n := range all {
			total++
			switch {
			case seen[n.EventID]:
				doubled++
			case n.EventID < last:
				s.t.Errorf("%s: %s: %s comes first after %s", s, pushkey, n.EventID, last)
			default:
				last = n.EventID
				sent := h.sent[n.EventID].at
				if took := n.Began.Sub(sent); sent.After(s.start) {
					longest = max(longest, took)
					if n.Began.Before(s.at(s.struck)) {
						calm = max(calm, took)
					}
				}
			}
			seen[n.EventID] = true
			if i == 0 || !n.Began.Before(all[i-1].Ended) {
				continue
			}
			if late++; !h.afterPause(n.Began) && !h.afterPause(all[i-1].Began) {
				s.t.Errorf("%s: %s: %s began %v before %s had ended", s, pushkey, n.EventID, all[i-1].Ended.Sub(n.Began), all[i-1].EventID)
			}
		}
	}
	faulty, lost := 0, int(h.gateway.lost.Load())
	for _, s := range h.strikes {
		if faulty++; s.crash { // each host may be cut off from shards
			faulty += chaosHosts - 1
		}
	}
	if most := faulty*chaosDoubled + lost; doubled > most {
		s.t.Errorf("%s: %d notifications arrived twice, want at most %d", s, doubled, most)
	}
	if h.within > 0 && longest > h.within+calm {
		s.t.Errorf("%s: the latest notification took %v", s, longest)
	}
	s.t.Logf("%s: so far %d events, %d notifications: 0 lost, %d doubled (%d answers of the gateway got lost), %d at the same time as another after a pause; the latest after %v, before the fault %v",
		s, len(h.sent), total, doubled, lost, late, longest, calm)
	return nil
}

// afterPause reports whether a host that was paused may have sent a request at this time.
func (h *deliveryHistory) afterPause(at time.Time) bool {
	return slices.ContainsFunc(h.strikes, func(s *strike) bool {
		return slices.ContainsFunc(s.resumed, func(since int64) bool {
			return at.After(s.at(since).Add(-hostPause)) && at.Before(s.at(since).Add(chaosSettled))
		})
	})
}
