package redisqueue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/queuetest"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
)

func openQueue(t *testing.T, client redis.UniversalClient) *redisqueue.Queue {
	t.Helper()
	q := newQueue(t, client)
	if err := q.Open(t.Context(), queuetest.Shards); err != nil {
		t.Fatal(err)
	}
	return q
}

func isAlone(t module.Trouble) bool { return t.Text == "alone" }

// filled is a queue of given backlogs.
type filled struct {
	*testing.T
	client redis.UniversalClient
	keys   stored.Keys
	now    int64
}

func newFilled(t *testing.T, client redis.UniversalClient) *filled {
	return &filled{t, client, stored.Keys{}, client.Time(t.Context()).Val().Unix()}
}

// add adds a backlog with two notifications for each user.
func (f *filled) add(shard int, gate string, age int64, trouble string, users ...string) {
	f.Helper()
	_, err := f.client.Pipelined(f.Context(), func(p redis.Pipeliner) error {
		for _, user := range users {
			name := fmt.Sprint(gate, user, trouble)
			entry := fmt.Sprintf(`hid--------------roomroom%8s000000%010d{}`, user, f.now-age)
			p.HSet(f.Context(), f.keys.ShardFirst(shard), name, stored.FirstEntry(gate, entry))
			p.RPush(f.Context(), f.keys.More(shard, name), entry)
			if trouble != "" {
				p.HSet(f.Context(), f.keys.ShardTrouble(shard), name, "7 "+trouble)
			}
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
}

func users(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("u", i))
	}
	return all
}

// A shard with many backlogs is read once, for all hosts, and in part.
func TestASummaryOfManyBacklogsIsAnEstimateAndShared(t *testing.T) {
	t.Parallel()
	const few, many = 3, 4 // shards
	server := redistest.Single(t)
	f := newFilled(t, server.Client(t))
	f.add(few, "https://few app", 100, "", users(5)...)
	f.add(many, "https://many app", 500, "", users(1000)...)
	observed := server.Client(t)
	trips := redistest.RecordTrips(observed)
	one, other := openQueue(t, observed), openQueue(t, observed)
	for n, q := range []*redisqueue.Queue{one, one, other, other} {
		s, err := q.Summary(t.Context(), isAlone)
		if err != nil || s.Notifications != 2010 || s.Gates["https://few app"] != 10 || s.Gates["https://many app"] != 2000 {
			t.Errorf("got %+v, %v", s, err)
		}
		if s.Oldest < 500*time.Second || s.Oldest > 560*time.Second {
			t.Errorf("the oldest is %v old", s.Oldest)
		}
		lengths, want := strings.Count(strings.Join(trips.Take(), "+"), "llen"), map[bool]int{true: 5 + 64, false: 5}[n == 0]
		if lengths != want {
			t.Errorf("call %d reads %d lists, want %d", n, lengths, want)
		}
	}
	if ttl := f.client.PTTL(t.Context(), f.keys.ShardSummary(many)).Val(); ttl <= 0 || ttl > 15*time.Second {
		t.Errorf("the shared summary lasts %v", ttl)
	}
}

// What one or two users do, with any number of gateways and pushers, does not make Oldest.
func TestTheOldestWaitsWithOthers(t *testing.T) {
	t.Parallel()
	const oldest = 500
	for _, test := range []struct {
		name  string
		fill  func(*filled)
		waits bool
	}{
		{"two users", func(f *filled) { f.add(1, "gate", oldest, "", "a", "b") }, false},
		{"two users with many pushers", func(f *filled) {
			for n := range 30 {
				f.add(1, "gate", oldest, fmt.Sprint("pusher ", n), "a", "b")
			}
		}, false},
		{"two users with many gates", func(f *filled) {
			for n := range 100 {
				f.add(1, fmt.Sprint("gate", n), oldest, "", "a", "b")
			}
		}, false},
		{"two users, and others for a moment", func(f *filled) {
			f.add(1, "gate", oldest, "", "a", "b")
			f.add(1, "gate", 0, "", users(20)...)
		}, false},
		{"three users", func(f *filled) { f.add(1, "gate", oldest, "", "a", "b", "c") }, true},
		{"three users of three shards", func(f *filled) {
			for shard, user := range users(3) {
				f.add(shard, "gate", oldest+100*int64(shard), "", user)
			}
		}, true},
		{"three users of three gates", func(f *filled) {
			for n, user := range users(3) {
				f.add(1, fmt.Sprint("gate", n), oldest, "", user)
			}
		}, false},
		{"users who wait alone", func(f *filled) { f.add(1, "gate", oldest, "alone", users(20)...) }, false},
		{"two users, and others who wait alone", func(f *filled) {
			f.add(1, "gate", oldest, "failed", "a", "b")
			f.add(1, "gate", oldest, "alone", "c", "d")
		}, false},
		{"three users, and others with more gates", func(f *filled) {
			f.add(1, "gate", oldest, "", "a", "b", "c")
			for n := range 40 {
				f.add(1, fmt.Sprint("a", n), 10*oldest, "", "d")
			}
		}, true},
		{"a large event", func(f *filled) { f.add(1, module.FanOut, oldest, "", "room") }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client := redistest.Single(t).Client(t)
			f, q := newFilled(t, client), openQueue(t, client)
			test.fill(f)
			for range 2 { // read, and perhaps shared
				s, err := q.Summary(t.Context(), isAlone)
				if waits := s.Oldest >= oldest*time.Second && s.Oldest < (oldest+60)*time.Second; waits != test.waits || err != nil {
					t.Errorf("the oldest is %v old, %v", s.Oldest, err)
				}
				if !test.waits && s.Oldest > time.Minute {
					t.Errorf("the oldest is %v old", s.Oldest)
				}
			}
		})
	}
}

// A Redis that refuses writes is noticed though nothing waits, and what waits is known. A key of another type stops no
// summary.
func TestASummaryNoticesThatWritesAreRefused(t *testing.T) {
	t.Parallel()
	keys := stored.Keys{}
	server := redistest.Single(t)
	client := server.Client(t)
	q := openQueue(t, client)
	client.Set(t.Context(), keys.More(1, "text"), "x", 0)
	client.HSet(t.Context(), keys.ShardFirst(1), "text", "no record")
	client.RPush(t.Context(), keys.ShardSummary(2), "x")
	f := newFilled(t, client)
	f.add(4, "gate", 500, "", users(20)...)
	check := func(says string) {
		t.Helper()
		s, err := q.Summary(t.Context(), isAlone)
		if err != nil || s.Notifications != 41 || s.Oldest < 500*time.Second || (s.Refused == nil) != (says == "") {
			t.Errorf("got %+v, %v", s, err)
		}
		if s.Refused != nil && !strings.Contains(fault.Details(s.Refused), says) {
			t.Errorf("%s: got error %v", says, s.Refused)
		}
	}
	check("")
	if n := client.Exists(t.Context(), keys.ShardSummary(3)).Val(); n != 1 {
		t.Error("an empty shard does not test that Redis takes writes")
	}
	for _, test := range []struct{ setting, bad, good, says string }{
		{"min-replicas-to-write", "1", "0", "NOREPLICAS"},
		{"maxmemory", "1", "0", "OOM"},
	} {
		for _, shard := range []int{3, 4} {
			client.Del(t.Context(), keys.ShardSummary(shard))
			if err := client.ConfigSet(t.Context(), test.setting, test.bad).Err(); err != nil {
				t.Fatal(err)
			}
			check(test.says)
			client.ConfigSet(t.Context(), test.setting, test.good)
		}
	}
}
