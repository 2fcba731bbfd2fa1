package host

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// A Redis that refuses what delivery needs moves a metric within a minute, by reason, also if the host hands no event
// over.
func TestARedisThatRefusesDeliveryIsSeen(t *testing.T) {
	t.Parallel()
	const background, handover = "pushfx_delivery_failures_total{reason=", "pushfx_delivery_handover_failures_total{reason="
	for name, test := range map[string]struct {
		reason       string
		refuse, undo []any
		or           string // the reason if the deadline of the repeats ends in the middle of one
	}{
		"its memory is full": {"oom", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, ""},
		"it lacks replicas":  {"readonly", []any{"CONFIG", "SET", "min-replicas-to-write", "1"}, []any{"CONFIG", "SET", "min-replicas-to-write", "0"}, ""},
		"it is a replica":    {"readonly", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}, "timeout"},
		"the ACL lacks ZADD": {"noperm", []any{"ACL", "SETUSER", "default", "-zadd"}, []any{"ACL", "SETUSER", "default", "+zadd"}, ""},
		"the control":        {"", []any{"PING"}, []any{"PING"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Single(t)
			admin := server.Client(t)
			var notifier module.Notifier
			var pushers module.PusherService
			_, registry := hosttest.StartMeasured(t, server.Client(t), pushfx.Delivery, fx.Decorate(hosttest.AllowLoopback), fx.Populate(&notifier, &pushers))
			gateway := hosttest.NewGateway(t)
			if err := pushers.Set(t.Context(), hosttest.Alice, hosttest.PusherAt(gateway.URL, "key"), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
			if err := admin.Do(t.Context(), test.refuse...).Err(); err != nil {
				t.Fatal(err)
			}
			count := func(metric, reason string) float64 { return hosttest.Scrape(t, registry)[metric+reason+"}"] }
			if test.reason == "" {
				time.Sleep(20 * time.Second)
				for name, value := range hosttest.Scrape(t, registry) {
					if value != 0 && (strings.HasPrefix(name, background) || strings.HasPrefix(name, handover)) {
						t.Errorf("%s is %v", name, value)
					}
				}
				return
			}
			hosttest.Eventually(t, "a failure is counted without an event", func() bool { return count(background, test.reason) > 0 })
			if err := hosttest.SendEvent(t.Context(), notifier, hosttest.Message(1), hosttest.Alice); err == nil {
				t.Error("the event was handed over")
			}
			counted := count(handover, test.reason)
			if test.or != "" {
				counted += count(handover, test.or)
			}
			if counted != 1 {
				t.Errorf("handovers that failed: %v", hosttest.Scrape(t, registry))
			}
			if err := admin.Do(t.Context(), test.undo...).Err(); err != nil {
				t.Fatal(err)
			}
			hosttest.Eventually(t, "events are handed over again", func() bool {
				return hosttest.SendEvent(t.Context(), notifier, hosttest.Message(1), hosttest.Alice) == nil
			})
			gateway.Wait(t, atLeast(1))
		})
	}
}
