package redisclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

type reports []error

func (r *reports) add(err error) { *r = append(*r, err) }

func TestClockFollowsRedisDespiteTheHostsClock(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	for _, skew := range []time.Duration{
		0, 500 * time.Millisecond, -500 * time.Millisecond, 11 * time.Minute, -11 * time.Minute, 24 * time.Hour, -24 * time.Hour,
	} {
		t.Run(skew.String(), func(t *testing.T) {
			var reported reports
			clock := NewClock(client, func() time.Time { return time.Now().Add(skew) }, reported.add)
			if got := time.Until(clock.Now()); (got - skew).Abs() > time.Second {
				t.Errorf("before its first measurement, the clock is %v ahead, want %v", got, skew)
			}
			clock.Measure(t.Context())
			clock.Measure(t.Context())
			if got := time.Until(clock.Now()); got.Abs() > time.Second {
				t.Errorf("the clock is %v ahead", got)
			}
			if got := clock.Offset(); (got + skew).Abs() > time.Second {
				t.Errorf("got offset %v", got)
			}
			want := 0
			if skew.Abs() > time.Second {
				want = 1
			}
			if len(reported) != want {
				t.Errorf("reported: %v", reported)
			}
			var differs *ClockError
			for _, err := range reported {
				if !errors.As(err, &differs) || (differs.Offset+skew).Abs() > time.Second || differs.Addr != client.Options().Addr {
					t.Errorf("reported: %v", err)
				}
			}
		})
	}
}

func TestClockReportsEachNewDifference(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	var skew time.Duration
	var reported reports
	clock := NewClock(client, func() time.Time { return time.Now().Add(skew) }, reported.add)
	for _, step := range []struct {
		skew time.Duration
		want int
	}{{0, 0}, {time.Hour, 1}, {time.Hour, 1}, {0, 1}, {-time.Hour, 2}} {
		skew = step.skew
		clock.Measure(t.Context())
		if len(reported) != step.want {
			t.Errorf("%v after %v", reported, step.skew)
		}
	}
}

func TestClockRunsBetweenMeasurements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := time.Now()
		clock := NewClock(nil, nil, nil)
		clock.last.Store(&reading{at: at, ahead: time.Hour})
		time.Sleep(40 * time.Second)
		if got := clock.Now().Sub(at); got != time.Hour+40*time.Second {
			t.Errorf("after 40 s the clock is at %v", got)
		}
	})
}

func TestFastestMasterSetsTheClock(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ahead, maxError []time.Duration
		want            reading
	}{
		{[]time.Duration{time.Second}, []time.Duration{0}, reading{ahead: time.Second, offset: time.Second, addr: "0"}},
		{
			[]time.Duration{-time.Minute, 2 * time.Second, time.Second}, []time.Duration{0, 0, 0},
			reading{ahead: 2 * time.Second, offset: -time.Minute, addr: "0", differs: true},
		},
		{
			[]time.Duration{0, time.Minute}, []time.Duration{0, time.Second},
			reading{ahead: time.Minute, offset: time.Minute, addr: "1", differs: true},
		},
		{ // a reply after 8 s
			[]time.Duration{4 * time.Second}, []time.Duration{4 * time.Second},
			reading{ahead: 4 * time.Second, offset: 4 * time.Second, addr: "0"},
		},
	} {
		m := measurement{host: func() time.Time { return time.Time{} }}
		for i, ahead := range test.ahead {
			m.add(string(rune('0'+i)), ahead, test.maxError[i])
		}
		if *m.reading != test.want {
			t.Errorf("%v: got %+v, want %+v", test.ahead, *m.reading, test.want)
		}
	}
}

func TestUnreadableClockKeepsItsLastMeasurement(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	var reported reports
	clock := NewClock(client, func() time.Time { return time.Now().Add(-time.Hour) }, reported.add)
	clock.Measure(t.Context())
	if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "-time").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		clock.Measure(t.Context())
	}
	if len(reported) != 2 || !strings.Contains(reported[1].Error(), "does not tell its time") {
		t.Errorf("reported: %v", reported)
	}
	server.Stop()
	clock.Measure(t.Context())
	if len(reported) != 2 {
		t.Errorf("reported: %v", reported)
	}
	if got := time.Until(clock.Now()); got.Abs() > time.Second {
		t.Errorf("the clock is %v ahead", got)
	}
}

func TestMeasureGivesUpOnASilentRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), ReadTimeout: time.Minute, ContextTimeoutEnabled: true, MaxRetries: -1,
	})
	t.Cleanup(func() { client.Close() })
	server.Pause()
	began := time.Now()
	NewClock(client, nil, fails(t)).Measure(t.Context())
	if took := time.Since(began); took > clockTimeout+late {
		t.Errorf("it took %v", took)
	}
}

func TestClockIsMeasuredUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	client := redistest.Single(t).Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	clock := NewClock(client, func() time.Time { return time.Now().Add(time.Hour) }, func(error) { cancel() })
	clock.interval = time.Millisecond
	clock.run(ctx) // its report cancels ctx
	if got := clock.Offset() + time.Hour; got.Abs() > time.Minute {
		t.Errorf("got offset %v", clock.Offset())
	}
}

func fails(t *testing.T) func(error) {
	return func(err error) { t.Errorf("reported: %v", err) }
}
