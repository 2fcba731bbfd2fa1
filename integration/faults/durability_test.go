package faults

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/rulestore"
)

// hasWAITAOF reports whether the servers have the command, which came with Redis 7.2.
func hasWAITAOF(t *testing.T) bool {
	t.Helper()
	commands, err := redistest.Single(t).Client(t).Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, found := commands["waitaof"]
	return found
}

func withDurability(d rediscommit.Durability) fx.Option {
	return fx.Decorate(func(c pushfx.Config) pushfx.Config { c.Redis.Durability = d; return c })
}

func TestDurabilityWithoutServerSupportStopsTheStart(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	reason := "unknown command"
	if hasWAITAOF(t) {
		reason = "appendonly is disabled"
	}
	server := redistest.Single(t)
	err := hosttest.Startable(server.Client(t), withDurability(rediscommit.Durability{AOF: true, Timeout: time.Second})).Start(t.Context())
	for _, part := range []string{"pushfx: ", "Durability aof needs Redis 7.2 or later with appendonly yes", server.Addr(), reason} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want %q in it", err, part)
		}
	}
}

type latencies []time.Duration

func (l latencies) String() string {
	return fmt.Sprintf("%d answers, median %v, 99%% within %v, longest %v", len(l), l[len(l)/2], l[len(l)*99/100], l[len(l)-1])
}

func readUntil(h *hosttest.Host, done <-chan struct{}) latencies {
	const readers = 4
	took := make([]latencies, readers)
	var reading sync.WaitGroup
	for n := range readers {
		reading.Go(func() {
			for user := fmt.Sprintf("@reader%d:example.org", n); ; time.Sleep(2 * time.Millisecond) {
				began := time.Now()
				a, err := h.Try(context.Background(), user, http.MethodGet, hosttest.V3+"/pushrules/", "")
				took[n] = append(took[n], time.Since(began))
				if err != nil || a.Status != http.StatusOK {
					h.T.Errorf("%s: got %s, %v", user, a, err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	reading.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all
}

func TestUnreachedDurabilityGives503InTimeWhileReadsContinue(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	const (
		many     = 50
		limit    = 3 * time.Second
		patience = limit / 3
	)
	server := redistest.Single(t)
	plain := hosttest.StartHost(t, server.Client(t))
	h := hosttest.StartHost(t, server.Client(t), fx.Decorate(func(c pushfx.Config) pushfx.Config {
		hosttest.SetTimeouts(&c, limit)
		c.Redis.Durability = rediscommit.Durability{Replicas: 1, Timeout: patience}
		return c
	}))
	prepared := make(chan struct{})
	close(prepared)
	readUntil(plain, prepared) // creates the rules of the readers
	for _, try := range []string{"alone", "again, when it would change nothing"} {
		began := time.Now()
		a := h.Ask(t, "@reader0:example.org", `PUT /pushrules/global/room/r {"actions":[]}`)
		if took := time.Since(began); a.Status != http.StatusServiceUnavailable || took > limit+hosttest.Slack {
			t.Errorf("%s: got %s after %v, want it after %v", try, a, took, patience)
		}
	}
	var writing sync.WaitGroup
	for n := range many {
		user := fmt.Sprintf("@writer%d:example.org", n)
		plain.Do(user, http.MethodGet, hosttest.V3+"/pushrules/", "")
		writing.Go(func() {
			began := time.Now()
			a := h.Ask(t, user, `PUT /pushrules/global/room/r {"actions":[]}`)
			if took := time.Since(began); a.Status != http.StatusServiceUnavailable || took > limit+hosttest.Slack {
				t.Errorf("got %s after %v", a, took)
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	reads := readUntil(h, done)
	t.Logf("reads while %d writers wait: %v", many, reads)
	if longest := reads[len(reads)-1]; longest >= patience*3/4 {
		t.Errorf("a read takes %v, as if it waited for the replica", longest)
	}
}

// sentWaits makes a server reply to each wait after a delay, like one with a replica and an append-only file. It
// records the scripts and waits.
type sentWaits struct {
	slow        time.Duration
	connections []*server.Peer
	commands    []string
}

func (w *sentWaits) answer(from *server.Peer, command string, args ...string) bool {
	switch command {
	case "EVALSHA":
		w.connections = append(w.connections, from)
		return false
	case "WAIT":
		time.Sleep(w.slow)
		from.WriteInt(1)
	case "WAITAOF":
		from.WriteLen(2)
		from.WriteInt(1)
		from.WriteInt(0)
	default:
		return false
	}
	w.connections = append(w.connections, from)
	w.commands = append(w.commands, strings.Join(append([]string{command}, args...), " "))
	return true
}

// All are on one connection, since a wait is for the writes of its connection.
func TestDurabilityOfTheFileGetsTheRestOfTheTimeout(t *testing.T) {
	t.Parallel()
	redis, client := hosttest.Embedded(t)
	cfg := rediscommit.DefaultConfig()
	cfg.Durability = rediscommit.Durability{Replicas: 1, AOF: true, Timeout: 500 * time.Millisecond}
	store, err := rulestore.New(client, cfg, rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var sent *sentWaits
	for _, user := range []mxid.UserID{"@first:example.org", hosttest.Alice} { // the first loads the script
		sent = &sentWaits{slow: 200 * time.Millisecond}
		redis.Server().SetPreHook(sent.answer)
		_, err := store.Update(t.Context(), user, func(rules *pushrule.Ruleset, _ bool) error {
			*rules = pushrule.ServerDefault(user)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var first, second int
	if _, err := fmt.Sscanf(strings.Join(sent.commands, ", "), "WAIT 1 %d, WAITAOF 1 0 %d", &first, &second); err != nil {
		t.Fatalf("%q: %v", sent.commands, err)
	}
	if len(slices.Compact(sent.connections)) != 1 || first > 500 || second > max(1, first-200) || second < 1 {
		t.Errorf("%d connections sent %q", len(slices.Compact(sent.connections)), sent.commands)
	}
}

// countsOf returns other counts each time.
type countsOf struct{ n atomic.Int64 }

func (c *countsOf) States(_ context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	all := make([]module.Result[module.UnreadState], len(events))
	for i := range all {
		all[i].Value.Counts = &module.Counts{Unread: int(c.n.Add(1))}
	}
	return all
}

// Notifications that no replica confirms are sent. However many there were, the next ones are sent at once.
func TestNotificationsWithoutConfirmationAreSent(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client, gateway, registry := server.Client(t), hosttest.NewGateway(t), prometheus.NewRegistry()
	client.ConfigSet(t.Context(), "hz", "500") // how often Redis looks whether a wait is over
	push := func(d rediscommit.Durability, o pushfx.Options) *pushfx.Push {
		cfg := hosttest.AllowLoopback(pushfx.DefaultConfig())
		cfg.Redis.Durability, cfg.Delivery.BadgeDelay = d, 10*time.Millisecond
		o.Delivery = &pushfx.DeliveryOptions{Unread: &countsOf{}}
		p, err := pushfx.New(client, cfg, o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	confirmed := push(rediscommit.DefaultConfig().Durability, pushfx.Options{})
	if err := confirmed.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := confirmed.Pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt(gateway.URL, "key"), pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	p := push(rediscommit.Durability{Replicas: 1, Timeout: time.Millisecond}, pushfx.Options{Metrics: registry})
	hosttest.StartPush(t, p)
	const outages, badges, events = 3, 400, 20
	for range outages {
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				for range badges / 4 {
					if err := p.Notifier.UpdateBadges(context.Background(), hosttest.Alice); err != nil {
						t.Error(fault.Details(err))
						return
					}
				}
			})
		}
		calls.Wait()
		time.Sleep(100 * time.Millisecond) // the badges are sent
	}
	began := time.Now()
	for n := range events {
		if err := hosttest.SendEvent(t.Context(), p.Notifier, hosttest.Message(n), hosttest.Alice); err != nil {
			t.Fatal(fault.Details(err))
		}
	}
	gateway.Wait(t, func(all []receiver.Notification) bool {
		return len(slices.DeleteFunc(slices.Clone(all), func(n receiver.Notification) bool { return n.EventID == "" })) == events
	})
	if took := time.Since(began); took > hosttest.Slack {
		t.Errorf("the events took %v", took)
	}
	if n := client.HLen(t.Context(), stored.Keys{}.UserLog(hosttest.Alice)).Val(); n > 10 {
		t.Errorf("the log has %d fields", n)
	}
	hosttest.Scrape(t, registry).Want(t, hosttest.Scraped{"pushfx_delivery_unconfirmed_total{}": outages*badges + events})
}
