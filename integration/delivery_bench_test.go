package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
)

// The event has 100,000 members. The host has read their rules before.
func BenchmarkDeliveryOfALargeEvent(b *testing.B) {
	redistest.Require(b)
	server := redistest.Single(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance()})
	b.Cleanup(func() { client.Close() })
	push, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err == nil {
		err = push.Check(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	stop := runPush(b, push) // rules are cached only while the host follows changes
	members := make([]match.Member, 100_000)
	for i := range members {
		members[i] = match.Member{User: mxid.UserID(fmt.Sprintf("@user%06d:example.org", i))}
	}
	if _, err := push.Notifier.Decide(b.Context(), message(0), members); err != nil {
		b.Fatal(err)
	}
	var decide, notify []time.Duration
	for n := 1; b.Loop(); n++ {
		began := time.Now()
		decisions, err := push.Notifier.Decide(b.Context(), message(n), members)
		if err != nil {
			b.Fatal(err)
		}
		decided := time.Now()
		if err := push.Notifier.Notify(b.Context(), message(n), "", decisions); err != nil {
			b.Fatal(err)
		}
		decide, notify = append(decide, decided.Sub(began)), append(notify, time.Since(decided))
		time.Sleep(time.Second) // the host then reads the pushers of all members
	}
	stop()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(quantile(decide, 0.5)), "ms-decide")
	b.ReportMetric(ms(slices.Min(decide)), "ms-decide-fastest")
	b.ReportMetric(ms(quantile(notify, 0.5)), "ms-notify")
	b.ReportMetric(ms(slices.Min(notify)), "ms-notify-fastest")
}
