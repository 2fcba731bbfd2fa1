package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

// skews are pairs of deviations of two hosts' clocks.
func skews() (all [][2]time.Duration) {
	for _, most := range []time.Duration{11 * time.Minute, 24 * time.Hour} {
		all = append(all, [2]time.Duration{most, -most}, [2]time.Duration{-most, most}, [2]time.Duration{most, 0}, [2]time.Duration{0, most})
	}
	return all
}

func clockAhead(by time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(by) }
}

// redisClock returns a clock that is ahead of Redis's by a duration.
func redisClock(t *testing.T, client redis.UniversalClient, by time.Duration) func() time.Time {
	t.Helper()
	clock := redisclient.NewClock(client, clockAhead(by), func(error) {})
	clock.Measure(t.Context())
	return clock.Now
}

// When an operator deletes an event, the next host creates it again, with a version above the known one, so that
// syncs wake.
func TestSyncsReceiveARecreatedEventWithSkewedClocks(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	for _, skew := range skews() {
		t.Run(fmt.Sprint(skew), func(t *testing.T) {
			t.Parallel()
			user := mxid.UserID(fmt.Sprintf("@again%d%d:example.org", int(skew[0].Minutes())+2000, int(skew[1].Minutes())+2000))
			var hosts [2]*feedHost
			var clocks [2]func() time.Time
			for n := range hosts {
				client := server.Client(t)
				clocks[n] = redisClock(t, client, skew[n])
				hosts[n] = newOutpostWith(t, client, rediscommit.Options{Now: clocks[n]})
			}
			first := hosts[0].syncs(user)
			hosts[1].syncs(user)
			hosts[0].put(user, "before")
			hosts[1].waitFor(user, "before")
			before := hosts[1].syncs(user)
			// Hosts agree on the time of Redis to within a round trip.
			hosttest.Eventually(t, "the clock of the host that creates the event is past the version", func() bool {
				return clocks[1]().UnixMicro() > before.Version
			})
			if err := server.Client(t).Del(t.Context(), "account_data:{"+string(user)+"}:m.push_rules").Err(); err != nil {
				t.Fatal(err)
			}
			hosts[1].syncs(user) // which creates the default set
			hosts[1].put(user, "after")
			hosts[0].waitFor(user, "after")
			update, err := hosts[0].sync.Since(t.Context(), user, before.Version)
			after := update.Content
			if err != nil || !update.New || !isSorted(first.Version, before.Version, after.Version) {
				t.Errorf("versions %d, %d and %d, changed %t, error %v", first.Version, before.Version, after.Version, update.New, err)
			}
			if drift := time.Until(time.UnixMicro(after.Version)); drift.Abs() > time.Minute {
				t.Errorf("the version is %v ahead", drift)
			}
		})
	}
}

func isSorted(versions ...int64) bool {
	return slices.IsSorted(versions) && len(slices.Compact(versions)) == len(versions)
}

func TestAHostWarnsThatItsClockDiffersFromRedis(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ahead time.Duration
		warns bool
	}{{0, false}, {-11 * time.Minute, true}, {24 * time.Hour, true}} {
		server, client := hosttest.Embedded(t)
		if test.ahead != 0 { // the clock stands still from here on
			server.SetTime(time.Now().Add(test.ahead))
		}
		h, registry := hosttest.StartMeasured(t, client)
		if got := h.Logs.FilterMessage("the clocks of this host and of Redis differ").Len(); got != 0 != test.warns || got > 1 {
			t.Errorf("%v ahead: %d lines", test.ahead, got)
		}
		got := time.Duration(hosttest.Scrape(t, registry)["pushfx_clock_offset_seconds{}"] * float64(time.Second))
		if (got - test.ahead).Abs() > time.Minute {
			t.Errorf("%v ahead: the metric says %v", test.ahead, got)
		}
		h.Do(hosttest.Alice, "GET", hosttest.V3+"/pushrules/", "")
		put := h.Do(hosttest.Alice, "PUT", hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
		if put.Status != 200 {
			t.Errorf("%v ahead: %v", test.ahead, put)
		}
	}
}
