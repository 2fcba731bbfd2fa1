package redisclient

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redistest"
)

type journal struct {
	observe.Observer

	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) Report(problem observe.Problem, err error) {
	switch problem {
	case observe.ClientSetting:
		setting := err.(*SettingError)
		j.add(setting.Option + " at " + setting.Address)
	case observe.NoDurability:
		j.add("short of " + err.Error())
	case observe.RedisEvicts:
		j.add("evicts: " + err.Error())
	case observe.ClockDiffers, observe.ClockUnknown:
		j.add("clock: " + err.Error())
	}
}

type fixedDurability struct {
	shortages []string
	err       error
}

func (d fixedDurability) Check(context.Context, redis.UniversalClient) ([]string, error) {
	return d.shortages, d.err
}

func monitorOf(client redis.UniversalClient, d durabilityCheck) (*Monitor, *journal) {
	var reported journal
	return NewMonitor(client, DefaultConfig(), d, &reported), &reported
}

func TestStartCheckReportsHarmfulSettings(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: 2 * time.Second, ReadTimeout: time.Second})
	hasty := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, DialTimeout: 2 * time.Second, ReadTimeout: time.Second, MaxRetries: -1})
	t.Cleanup(func() { client.Close(); hasty.Close() })
	never := errors.New("never")
	for _, test := range []struct {
		name       string
		client     redis.UniversalClient
		durability fixedDurability
		reported   []string
		err        error
	}{
		{"good settings", client, fixedDurability{}, nil, nil},
		{"a harmful setting", hasty, fixedDurability{}, []string{"MaxRetries at " + server.Addr()}, nil},
		{"shortages", client, fixedDurability{shortages: []string{"a", "b"}}, []string{"short of a", "short of b"}, nil},
		{"a master that never can", client, fixedDurability{[]string{"a"}, never}, []string{"short of a"}, never},
	} {
		m, reported := monitorOf(test.client, test.durability)
		if err := m.Check(t.Context()); err != test.err {
			t.Errorf("%s: got error %v, want %v", test.name, err, test.err)
		}
		if !slices.Equal(reported.lines, test.reported) {
			t.Errorf("%s: reported %q, want %q", test.name, reported.lines, test.reported)
		}
		if m.Clock().last.Load() == nil {
			t.Errorf("%s: the clock was not measured", test.name)
		}
	}
}

func TestEachNewEvictionIsReportedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	client := server.Client(t)
	m, reported := monitorOf(client, fixedDurability{})
	m.interval, m.clock.interval = time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	for range 2 {
		configure(t, client, "maxmemory", "100mb")
		configure(t, client, "maxmemory-policy", "allkeys-lru")
		for m.EvictingMasters() == 0 || m.Clock().last.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		configure(t, client, "maxmemory-policy", "noeviction")
		for m.EvictingMasters() != 0 {
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	<-ended
	if len(reported.lines) != 2 || !strings.Contains(reported.lines[1], server.Addr()+" evicts keys") {
		t.Errorf("reported %q", reported.lines)
	}
}

func TestMonitorWithoutAClientIsHealthy(t *testing.T) {
	t.Parallel()
	m, _ := monitorOf(nil, fixedDurability{})
	if off := time.Until(m.Clock().Now()).Abs(); off > time.Second {
		t.Errorf("the clock is %v off", off)
	}
	if err := m.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStartTimeoutMustBePositive(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{}).Validate(); err == nil || err.Error() != "StartTimeout is 0s, want above 0" {
		t.Errorf("got error %v", err)
	}
}
