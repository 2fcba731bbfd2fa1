package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/fold"
	"github.com/pushfx/pushfx/module/unread/redisunread"
)

// unreadBench measures unread counts in this process, and the bare client for comparison.
type unreadBench struct {
	phase   time.Duration
	rounds  int
	callers int
	only    string

	*servers
	client  *redis.Client
	service *unread.Service
	result  match.Result // the result of a rule that notifies
}

func runUnread(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench unread", flag.ContinueOnError)
	b := &unreadBench{}
	flags.DurationVar(&b.phase, "phase", 300*time.Millisecond, "`TIME` of each load")
	flags.IntVar(&b.rounds, "rounds", 5, "`NUMBER` of loads of each kind")
	flags.IntVar(&b.callers, "callers", 64, "`NUMBER` of callers, each with one call at a time")
	flags.StringVar(&b.only, "only", "", "measure only work whose name begins with `TEXT`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.phase <= 0 || b.rounds < 1 || b.callers < 1 || b.callers > 1000 || flags.NArg() > 0 {
		return errNothing
	}
	b.servers, err = startRedis(ctx)
	defer b.close()
	if err != nil {
		return err
	}
	b.client = redis.NewClient(&redis.Options{Addr: b.address, ContextTimeoutEnabled: true, PoolSize: b.callers})
	defer b.client.Close()
	store, err := redisunread.New(b.client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		return err
	}
	b.service = unread.New(store, unread.Config{}, 24*time.Hour, 0, nil, nil)
	if b.result, err = notifyingResult(); err != nil {
		return err
	}
	return b.measure(ctx)
}

func notifyingResult() (match.Result, error) {
	event, err := match.ReadEvent(`{"type":"m.room.message","content":{"body":"hello"}}`)
	if err != nil {
		return match.Result{}, err
	}
	return match.Compile(pushrule.ServerDefault("@a:b")).Evaluate(event, match.Facts{User: "@a:b"}), nil
}

// unreadWork is a row of the table.
type unreadWork struct {
	name    string
	floor   string // the bare command of the ratio: GET or RPUSH
	goal    string
	single  bool // whether a round is one call by one caller
	callers int  // 0 for those of the bench
	per     int  // number of users in a call
	prepare func(ctx context.Context) error
	call    func(ctx context.Context, n int64) error // n is the number of the call, from 1
}

const (
	floorRead   = "GET"
	floorChange = "RPUSH"
)

func (b *unreadBench) measure(ctx context.Context) error {
	printMachine("%d callers, %d rounds of %v of the bare client and of the service in turn, medians", b.callers, b.rounds, b.phase)
	fmt.Println("| Work | CPU bare client | CPU service | ratio | goal | p99 |")
	fmt.Println("|" + strings.Repeat("---|", 6))
	if err := b.client.Set(ctx, "floor", strings.Repeat("x", 3600), 0).Err(); err != nil {
		return err
	}
	floors := map[string]func(context.Context, int64) error{
		floorRead: func(ctx context.Context, _ int64) error { return b.client.Get(ctx, "floor").Err() },
		floorChange: func(ctx context.Context, n int64) error {
			return b.client.RPush(ctx, fmt.Sprint("floor:", n%1000), strings.Repeat("x", 64)).Err()
		},
	}
	for _, w := range b.works() {
		if !strings.HasPrefix(w.name, b.only) {
			continue
		}
		if err := b.compare(ctx, w, floors[w.floor]); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

func (b *unreadBench) compare(ctx context.Context, w unreadWork, bare func(context.Context, int64) error) error {
	if w.prepare != nil {
		if err := w.prepare(ctx); err != nil {
			return err
		}
	}
	var floors, all []outcome
	var made, madeBare atomic.Int64
	for range b.rounds {
		if bare != nil {
			if err := b.loadOf(ctx, unreadWork{}, &madeBare, bare, &floors); err != nil {
				return err
			}
		}
		if err := b.loadOf(ctx, w, &made, w.call, &all); err != nil {
			return err
		}
	}
	b.print(w, floors, all)
	return nil
}

func (b *unreadBench) loadOf(ctx context.Context, w unreadWork, made *atomic.Int64, call func(context.Context, int64) error, outcomes *[]outcome) error {
	callers := cmp.Or(w.callers, b.callers)
	if w.single {
		callers = 1
	}
	var found outcome
	times := make([][]time.Duration, callers)
	spent, err := b.redisCPUOf(ctx, func() error {
		before, until := ownCPU(), time.Now().Add(b.phase)
		defer func() { found.host = ownCPU() - before }()
		return sideBySide(ctx, callers, func(ctx context.Context, i int) error {
			for {
				began := time.Now()
				if err := call(ctx, made.Add(1)); err != nil {
					return err
				}
				times[i] = append(times[i], time.Since(began))
				if w.single || time.Now().After(until) {
					return nil
				}
			}
		})
	})
	if err != nil {
		return err
	}
	together := slices.Concat(times...)
	found.requests, found.redis, found.p99 = len(together), spent, quantile(together, .99)
	*outcomes = append(*outcomes, found)
	return nil
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // cannot fail for the process itself
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (b *unreadBench) print(w unreadWork, floors, all []outcome) {
	host, server := perRequest(all)
	each := time.Duration(max(w.per, 1))
	cpu := func(host, server time.Duration) string { return us(host) + " + " + us(server) + " µs" }
	floor, ratio, own := "", "", cpu(host/each, server/each)
	if w.single {
		own = ms(host) + " + " + ms(server)
	}
	if len(floors) > 0 {
		floorHost, floorServer := perRequest(floors)
		floor = w.floor + " " + cpu(floorHost, floorServer)
		ratio = fmt.Sprintf("%.2f", float64(host+server)/float64(each)/float64(floorHost+floorServer))
	}
	fmt.Printf("| %s | %s | %s | %s | %s | %s |\n", w.name, floor, own, ratio, w.goal,
		ms(medianOf(all, func(o outcome) time.Duration { return o.p99 })))
}

// works returns the rows of the table.
func (b *unreadBench) works() []unreadWork {
	user := func(n int64) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%d:example.org", n%1000)) }
	all := []unreadWork{
		{name: "Read", floor: floorChange, goal: "1.2", call: func(ctx context.Context, n int64) error {
			return b.service.Read(ctx, user(n), benchRoom(0), module.AllThreads, n)
		}},
		{name: "Add for 1 user", floor: floorChange, goal: "1.2", call: func(ctx context.Context, n int64) error {
			return b.add(ctx, n, module.Decisions{{User: user(n), Result: b.result}})
		}},
	}
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		all = append(all, b.addToMany(n))
	}
	all = append(all, b.roomsOf("Rooms of 3", "1.3", 50, 2, benchRoom(1), benchRoom(2), benchRoom(3)))
	for _, size := range [][2]int{{1, 0}, {1, 200}, {10, 2}, {50, 0}, {50, 2}, {50, 20}, {50, 200}, {500, 0}, {500, 10}} {
		goal := ""
		if size == [2]int{500, 0} {
			goal = "200 + 15 µs, p99 5 ms"
		}
		all = append(all, b.roomsOf("Rooms of all", goal, size[0], size[1]))
	}
	return append(all, b.badges())
}

func (b *unreadBench) add(ctx context.Context, position int64, decisions module.Decisions) error {
	return b.service.Add(ctx, module.Place{Room: benchRoom(0), Position: position, Thread: module.MainThread}, decisions)
}

// addToMany adds events for users whose lists are so long that each may be compacted.
func (b *unreadBench) addToMany(n int) unreadWork {
	decisions := make(module.Decisions, n)
	for i := range decisions {
		decisions[i] = module.Decision{User: mxid.UserID(fmt.Sprintf("@member%d:example.org", i)), Result: b.result}
	}
	w := unreadWork{name: fmt.Sprintf("Add for %d users", n), single: true, prepare: func(ctx context.Context) error {
		return b.fill(ctx, n, func(i int) mxid.UserID { return decisions[i].User }, 1, 2, 17)
	}, call: func(ctx context.Context, n int64) error { return b.add(ctx, 10_000+n, decisions) }}
	if n == 100_000 {
		w.goal = "400 + 300 ms"
	}
	return w
}

func (b *unreadBench) roomsOf(name, goal string, rooms, unread int, named ...string) unreadWork {
	user := func(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@reader%d:example.org", n%100)) }
	return unreadWork{
		name: fmt.Sprintf("%s, of %d with %d unread each", name, rooms, unread), floor: floorRead, goal: goal,
		prepare: func(ctx context.Context) error { return b.fill(ctx, 100, user, rooms, unread, 8) },
		call: func(ctx context.Context, n int64) error {
			_, err := b.service.Rooms(ctx, user(int(n)), named...)
			return err
		},
	}
}

func (b *unreadBench) badges() unreadWork {
	users := make([]module.UserEvent, 100)
	for i := range users {
		users[i].User = mxid.UserID(fmt.Sprintf("@badge%d:example.org", i))
	}
	return unreadWork{
		name: "a badge, of 100 at once, of 50 rooms with 2 unread each, by 4 callers", floor: floorRead, goal: "40 + 5 µs", per: len(users),
		callers: 4, // a host makes one such call at a time
		prepare: func(ctx context.Context) error {
			return b.fill(ctx, len(users), func(i int) mxid.UserID { return users[i].User }, 50, 2, 8)
		},
		call: func(ctx context.Context, _ int64) error { return b.service.States(ctx, users)[0].Err },
	}
}

func benchRoom(n int) string { return fmt.Sprintf("!room%014d:example.org", n) }

// fill gives each user a list: a record of rooms with unread notifications in each room, and operations.
func (b *unreadBench) fill(ctx context.Context, users int, user func(int) mxid.UserID, rooms, unread, operations int) error {
	now := time.Now().UnixMilli()
	var texts []string
	for room := range rooms {
		texts = append(texts, fold.Op{Kind: fold.Read, Room: benchRoom(room), Thread: fold.All, Position: 1, Time: now}.Text())
		for i := range unread {
			op := fold.Op{Kind: fold.Notified, Room: benchRoom(room), Thread: fold.Main, Position: int64(1000 + i), Time: now, Actions: `["notify"]`}
			texts = append(texts, op.Text())
		}
	}
	record, err := fold.Fold(texts)
	if err != nil {
		return err
	}
	list := []any{record.Text(), stored.UnreadDigest(record.Text())}
	for i := range operations {
		list = append(list, fold.Op{Kind: fold.Read, Room: benchRoom(0), Thread: fold.Main, Position: int64(i + 2), Time: now}.Text())
	}
	for from := 0; from < users && err == nil; from += 1000 {
		_, err = b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < min(from+1000, users); i++ {
				key := stored.Keys{}.Unread(user(i))
				p.Del(ctx, key)
				p.RPush(ctx, key, list...)
			}
			return nil
		})
	}
	return err
}
