package integration

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread/fold"
)

// unreadUser gives a user a list: a record of rooms with unread notifications each, and some operations.
func unreadUser(b *testing.B, client redis.UniversalClient, user mxid.UserID, rooms, unread, ops int) {
	b.Helper()
	var texts []string
	for room := range rooms {
		for i := range int64(max(unread, 1)) {
			op := fold.Op{Kind: fold.Notified, Room: benchRoom(room), Position: 1000 + i, Thread: fold.Main, Time: 1764000000000 + i*60_000, Actions: `["notify"]`}
			if unread == 0 {
				op.Kind, op.Thread = fold.Read, fold.All
			}
			texts = append(texts, op.Text())
		}
	}
	record, err := fold.Fold(texts)
	if err != nil {
		b.Fatal(err)
	}
	list := []any{record.Text()}
	for i := range ops {
		list = append(list, fold.Op{Kind: fold.Read, Room: benchRoom(0), Position: int64(i + 1), Time: 1764000000000}.Text())
	}
	if err := client.RPush(b.Context(), stored.Keys{}.Unread(user), list...).Err(); err != nil {
		b.Fatal(err)
	}
}

func benchRoom(n int) string { return fmt.Sprintf("!room%014d:example.org", n) }

// spent is the CPU time of this process and of Redis. Redis reports the latter in microseconds.
func spent(b *testing.B, client redis.UniversalClient) (host, server time.Duration) {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	info, err := client.InfoMap(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			b.Fatal(err)
		}
		server += time.Duration(seconds * float64(time.Second))
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), server
}

// BenchmarkUnread reports CPU times of the host and of Redis, beside a GET of 3.6 KB and an RPUSH of 64 bytes by
// the bare client.
func BenchmarkUnread(b *testing.B) {
	client := redistest.Single(b).Client(b)
	service := newUnread(b, client)
	decision := notifying(b, alice)
	if err := client.Set(b.Context(), "floor", string(make([]byte, 3600)), 0).Err(); err != nil {
		b.Fatal(err)
	}
	run := func(name string, prepare func(b *testing.B), call func(i int) error) {
		b.Run(name, func(b *testing.B) {
			if prepare != nil {
				prepare(b)
			}
			host, server := spent(b, client)
			b.ResetTimer()
			for i := range b.N {
				if err := call(i); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			hostAfter, serverAfter := spent(b, client)
			b.ReportMetric(float64((hostAfter-host).Nanoseconds())/1e3/float64(b.N), "host-µs/op")
			b.ReportMetric(float64((serverAfter-server).Nanoseconds())/1e3/float64(b.N), "redis-µs/op")
		})
	}
	as := func(i int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%d:example.org", i%1000)) }
	run("floor/GET", nil, func(int) error { return client.Get(b.Context(), "floor").Err() })
	run("floor/RPUSH", nil, func(i int) error {
		return client.RPush(b.Context(), fmt.Sprint("floor:", i%1000), string(make([]byte, 64))).Err()
	})
	run("Read", nil, func(i int) error { return service.Read(b.Context(), as(i), benchRoom(0), "", int64(i+1)) })
	run("Add/1", nil, func(i int) error {
		decision := decision
		decision.User = as(i)
		return service.Add(b.Context(), module.Place{Room: benchRoom(0), Position: int64(i + 1), Thread: "main"}, module.Decisions{decision})
	})
	for _, n := range []int{1000, 100_000} {
		decisions := make(module.Decisions, n)
		run(fmt.Sprint("Add/", n), func(b *testing.B) {
			for i := range decisions {
				decisions[i] = decision
				decisions[i].User = mxid.UserID(fmt.Sprintf("@many%d:example.org", i))
			}
			client.FlushAll(b.Context())
			for i := range int64(17) { // lists are long
				if err := service.Add(b.Context(), module.Place{Room: benchRoom(1), Position: i + 1, Thread: "main"}, decisions); err != nil {
					b.Fatal(err)
				}
			}
		}, func(i int) error {
			return service.Add(b.Context(), module.Place{Room: benchRoom(2), Position: int64(i + 1), Thread: "main"}, decisions)
		})
	}
	for _, size := range [][2]int{{1, 0}, {50, 0}, {50, 2}, {500, 0}, {500, 10}, {500, 100}, {1, 200}} {
		user := mxid.UserID(fmt.Sprintf("@with%d-%d:example.org", size[0], size[1]))
		prepare := func(b *testing.B) {
			client.Del(b.Context(), stored.Keys{}.Unread(user))
			unreadUser(b, client, user, size[0], size[1], 8)
		}
		run(fmt.Sprintf("Rooms/all/rooms=%d,unread=%d", size[0], size[1]), prepare, func(int) error {
			_, err := service.Rooms(b.Context(), user)
			return err
		})
		if size[0] > 3 {
			run(fmt.Sprintf("Rooms/3/rooms=%d,unread=%d", size[0], size[1]), prepare, func(int) error {
				_, err := service.Rooms(b.Context(), user, benchRoom(1), benchRoom(2), benchRoom(3))
				return err
			})
		}
	}
	users := make([]mxid.UserID, 100)
	run("Counts/100", func(b *testing.B) {
		for i := range users {
			users[i] = mxid.UserID(fmt.Sprintf("@badge%d:example.org", i))
			client.Del(b.Context(), stored.Keys{}.Unread(users[i]))
			unreadUser(b, client, users[i], 50, 2, 8)
		}
	}, func(int) error {
		return service.Counts(b.Context(), users)[users[0]].Err
	})
	used, err := client.MemoryUsage(b.Context(), stored.Keys{}.Unread("@badge0:example.org"), 0).Result()
	if err == nil && used > 0 {
		b.Logf("a list of 50 rooms with 2 unread notifications each, and 8 operations: %d bytes", used)
	}
}
