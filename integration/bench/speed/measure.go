package speed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/bench/servers"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

// fewUsers is how many users make the requests, and how many there are at the
// start.
const fewUsers = 1000

// bench is the servers, and what was found.
type bench struct {
	plan
	*servers.Bed
	floor, demo *servers.Process
	others      []*servers.Process // further demo hosts, which get no requests
	program     string
	visits      visits
	report      report
}

// measure measures all and writes the report.
func measure(ctx context.Context, p plan) error {
	bed, err := servers.New(ctx)
	if err != nil {
		return err
	}
	defer bed.Close()
	b := &bench{plan: p, Bed: bed, program: p.program}
	if err := b.start(ctx); err != nil {
		return err
	}
	began := time.Now()
	for _, part := range parts {
		if p.parts != "" && !slices.Contains(strings.Split(p.parts, ","), part.name) {
			continue
		}
		progress("%v %s", time.Since(began).Round(time.Second), part.name)
		if err := part.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	progress("%v done", time.Since(began).Round(time.Second))
	b.report.plan = p
	return b.report.write(p.out)
}

// parts are what is measured, in turn. The last leaves many users behind.
var parts = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"start", (*bench).measureStart},
	{"operations", (*bench).measureOperations},
	{"latency", (*bench).measureLatency},
	{"hosts", (*bench).measureHosts},
	{"sizes", (*bench).measureSizes},
	{"hot", (*bench).measureHotUser},
	{"memory", (*bench).measureMemory},
	{"users", (*bench).measureUsers},
}

func partNames() (names []string) {
	for _, part := range parts {
		names = append(names, part.name)
	}
	return names
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// start starts both hosts and gives the users what they have.
func (b *bench) start(ctx context.Context) (err error) {
	if b.program == "" {
		progress("building the demo host")
		if b.program, err = b.Build(ctx, servers.DemoPackage); err != nil {
			return err
		}
	}
	if b.floor, err = b.startFloor(ctx); err != nil {
		return err
	}
	if b.demo, err = b.StartDemo(ctx, b.program, "-user-rate", "0"); err != nil {
		return err
	}
	if err := b.fillUsers(ctx, 0, fewUsers); err != nil {
		return err
	}
	for n := range fewUsers {
		user := userName(n)
		for i := range 3 {
			body := strings.Replace(pusher(i), "PUSHKEY", fmt.Sprintf("%s-%d", user, i), 1)
			if _, err := ask(b.demo.Address, makeRequest("POST", prefix+"/pushers/set", token(user), body)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) startFloor(ctx context.Context) (*servers.Process, error) {
	if b.against != "" {
		return b.StartDemo(ctx, b.against, "-user-rate", "0")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.Start(self, greeting, "speed", "-floor", b.RedisAddress)
}

func userName(n int) string { return fmt.Sprintf("user%d", n) }

// fillUsers gives users the default rules, past the hosts.
func (b *bench) fillUsers(ctx context.Context, first, end int) error {
	const batch = 500
	for at := first; at < end; at += batch {
		_, err := b.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n := at; n < min(at+batch, end); n++ {
				text, err := event(userName(n), 0)
				if err != nil {
					return err
				}
				p.Set(ctx, eventKey(userName(n)), text, 0)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// event is what the module stores of a user with the default rules and as many for rooms.
func event(user string, rooms int) (string, error) {
	rules := make([]string, rooms)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule_id":"!room%d:example.org","default":false,"enabled":true,"actions":["notify"]}`, i)
	}
	defaults := pushrule.ServerDefault(mxid.UserID("@" + user + ":localhost"))
	set, err := pushrule.Read(strings.Replace(defaults.JSON(), `"room":[`, `"room":[`+strings.Join(rules, ","), 1))
	e := stored.Event{Rules: set, Found: true}
	return e.Text(stored.Revision{}.Next(1, stored.Write{Writer: "BENCH", Attempt: 1})), err
}

// pair is the floor and the demo host under the same load, in turn.
type pair struct{ floor, demo []outcome }

// users returns whose turn it is on a connection.
type users func(connection, n int) (user string)

// visits counts the requests of users, of each operation on each host, so that each
// change differs from the one before: a change that changes nothing is a read.
type visits struct{ counts sync.Map }

func (v *visits) next(host string, o operation, user string) int {
	count, _ := v.counts.LoadOrStore([3]string{host, o.name, user}, new(atomic.Int64))
	return int(count.(*atomic.Int64).Add(1))
}

// compare loads both hosts with an operation, in turn.
func (b *bench) compare(ctx context.Context, o operation, l load, next users, rule string) (p pair, err error) {
	ofDemo := func(c, n int) []byte {
		user := next(c, n)
		return o.request(user, rule, b.visits.next("demo", o, user))
	}
	bytes, err := ask(b.demo.Address, ofDemo(0, 0))
	if err != nil {
		return p, err
	}
	ofFloor := func(c, n int) []byte {
		user := next(c, n)
		return o.floorRequest(user, b.visits.next("floor", o, user), bytes)
	}
	if b.against != "" { // whichever host makes a user's change, it differs from the one before
		ofFloor = ofDemo
	}
	l.length = b.phase
	for range b.rounds {
		l.request = ofFloor
		if err := b.load(ctx, b.floor, l, &p.floor); err != nil {
			return p, fmt.Errorf("%s: %w", o.name, err)
		}
		l.request = ofDemo
		if err := b.load(ctx, b.demo, l, &p.demo); err != nil {
			return p, fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return p, nil
}

// load makes a load on a host, and appends what became of it and what it cost.
func (b *bench) load(ctx context.Context, host *servers.Process, l load, outcomes *[]outcome) error {
	l.address = host.Address
	before, err := b.cpu(ctx, host)
	if err != nil {
		return err
	}
	found, err := l.run(ctx)
	if err != nil {
		return err
	}
	after, err := b.cpu(ctx, host)
	found.cpu = after.minus(before)
	*outcomes = append(*outcomes, found)
	return err
}

// cpu is what the servers have spent so far.
func (b *bench) cpu(ctx context.Context, host *servers.Process) (c cpu, err error) {
	c.host = host.CPU()
	for _, other := range b.others {
		c.others += other.CPU()
	}
	c.redis, c.redisMain, err = b.RedisCPU(ctx)
	return c, err
}

// closed is as many connections as the flags say, each of which makes a request
// when the one before is answered.
func (b *bench) closed() load { return load{connections: b.connections} }

// ownUser gives each connection users of its own, one after the other.
func ownUser(connections int) users {
	each := fewUsers / connections
	return func(connection, n int) string { return userName(connection*each + n%each) }
}

func (b *bench) measureOperations(ctx context.Context) error {
	for _, o := range operations() {
		p, err := b.compare(ctx, o, b.closed(), ownUser(b.connections), "")
		if err != nil {
			return err
		}
		b.report.operations = append(b.report.operations, row{o.name, "", o.goal, p})
		progress("  %s: %.2f, CPU %.2f", o.name, p.rate(), p.cpu())
	}
	return nil
}

// fixedRate is how many requests a second are made if there is a rate.
const fixedRate = 2000

// measureLatency compares what single requests take under small and larger loads.
func (b *bench) measureLatency(ctx context.Context) error {
	for _, o := range []operation{getSet, putEnabled, renewPusher} {
		for _, l := range []load{{connections: 1}, {connections: 4}, {connections: 16}, {connections: 16, rate: fixedRate}} {
			p, err := b.compare(ctx, o, l, ownUser(l.connections), "")
			if err != nil {
				return err
			}
			name := fmt.Sprint(l.connections)
			if l.rate > 0 {
				name = fmt.Sprintf("%d, %d/s", l.connections, l.rate)
			}
			b.report.latency = append(b.report.latency, row{o.name, name, 0, p})
			progress("  %s, %s: CPU %.2f", o.name, name, p.cpu())
		}
	}
	return nil
}

// measureHosts compares changes beside further hosts on the Redis, which hear of
// them and have nobody to tell.
func (b *bench) measureHosts(ctx context.Context) error {
	defer func() {
		for _, other := range b.others {
			other.Stop()
		}
		b.others = nil
	}()
	for _, hosts := range []int{0, 1, 4, 16} {
		for len(b.others) < hosts {
			other, err := b.StartDemo(ctx, b.program)
			if err != nil {
				return err
			}
			b.others = append(b.others, other)
		}
		if err := b.awaitSubscribers(ctx, hosts+1); err != nil {
			return err
		}
		p, err := b.compare(ctx, putActions, b.closed(), ownUser(b.connections), "")
		if err != nil {
			return err
		}
		b.report.hosts = append(b.report.hosts, row{putActions.name, fmt.Sprint(hosts), 0, p})
		progress("  %d further hosts: CPU %.2f", hosts, p.cpu())
	}
	return nil
}

// awaitSubscribers returns when as many hosts listen for changes.
func (b *bench) awaitSubscribers(ctx context.Context, hosts int) error {
	ctx, cancel := context.WithTimeout(ctx, servers.Patience)
	defer cancel()
	channel := stored.Keys{}.Channel()
	for {
		subscribers, err := b.Client.PubSubNumSub(ctx, channel).Result()
		if err != nil {
			return fmt.Errorf("waiting for %d hosts to subscribe: %w", hosts, err)
		}
		if subscribers[channel] >= int64(hosts) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// largeUsers are those who have more rules than the defaults: as few as they are on a
// host, so that what they have fits into its memory.
const largeUsers = 32

func (b *bench) ownLargeUser(connection, n int) string {
	each := largeUsers / b.connections
	return fmt.Sprintf("large%d", connection*each+n%each)
}

func (b *bench) measureSizes(ctx context.Context) error {
	for _, size := range b.sizes {
		for n := range largeUsers {
			user := fmt.Sprintf("large%d", n)
			text, err := event(user, size)
			if err != nil {
				return err
			}
			if err := b.Client.Set(ctx, eventKey(user), text, 0).Err(); err != nil {
				return err
			}
		}
		last := fmt.Sprintf("!room%d:example.org", size-1)
		for _, o := range grown() {
			p, err := b.compare(ctx, o, b.closed(), b.ownLargeUser, last)
			if err != nil {
				return err
			}
			b.report.sizes = append(b.report.sizes, sizeRow{row{o.name, fmt.Sprint(size), growthGoals[size][o.name], p}, size})
			progress("  %d rules, %s: %.2f, CPU %.2f", size, o.name, p.rate(), p.cpu())
		}
	}
	return nil
}

// measureUsers compares how the demo host does against the floor with few and
// with many users in Redis. Each request is of a random one.
func (b *bench) measureUsers(ctx context.Context) error {
	have := 0
	for _, users := range []int{fewUsers, b.users} {
		if err := b.fillUsers(ctx, have, users); err != nil {
			return err
		}
		have = users
		for _, o := range []operation{getSet, putActions} {
			p, err := b.compare(ctx, o, b.closed(), func(_, _ int) string { return userName(rand.IntN(users)) }, "")
			if err != nil {
				return err
			}
			b.report.users = append(b.report.users, row{o.name, fmt.Sprint(users), 0, p})
			progress("  %d users, %s: %.2f, CPU %.2f", users, o.name, p.rate(), p.cpu())
		}
	}
	return nil
}

// measureHotUser compares one client that changes a user's rules with many that
// do. The user is alone on a host of its own.
func (b *bench) measureHotUser(ctx context.Context) error {
	demo, err := b.StartDemo(ctx, b.program, "-user-rate", "0")
	if err != nil {
		return err
	}
	defer demo.Stop()
	for range b.rounds {
		for i, writers := range []int{1, hotWriters} {
			err := b.load(ctx, demo, load{connections: writers, length: b.phase, request: func(c, n int) []byte {
				return makeRequest(putRule.method, fmt.Sprintf("%s/pushrules/global/room/!room%d:example.org", prefix, c), token("user0"), actions(n))
			}}, &b.report.hot[i])
			if err != nil {
				return err
			}
		}
	}
	progress("  %d writers: %.1f times as fast as one", hotWriters, b.report.hotRatio())
	return nil
}

const hotWriters = 64

// manyConnections are those under which memory is looked at.
const manyConnections = 1000

// measureMemory looks at the demo host's memory under mixed load.
func (b *bench) measureMemory(ctx context.Context) error {
	demo, err := b.StartDemo(ctx, b.program, "-user-rate", "0")
	if err != nil {
		return err
	}
	defer demo.Stop()
	all := operations()
	all = all[:len(all)-1] // without the one that adds pushers
	for range max(3, b.rounds) {
		if _, err := (load{address: demo.Address, connections: manyConnections, length: 2 * b.phase, request: func(c, n int) []byte {
			return all[n%len(all)].request(userName(c%fewUsers), "", n)
		}}).run(ctx); err != nil {
			return err
		}
		b.report.memory = append(b.report.memory, demo.Resident())
	}
	progress("  MiB after each load: %v", b.report.mebibytes())
	return nil
}

// measureStart takes the time from the start of the demo host, on an embedded
// Redis, to its first answer.
func (b *bench) measureStart(context.Context) error {
	for range max(3, b.rounds) {
		start := time.Now()
		demo, err := b.Start(b.program, " listens on http://", "-listen", "127.0.0.1:0", "-log-level", "error")
		if err != nil {
			return err
		}
		_, err = ask(demo.Address, makeRequest("GET", prefix+"/pushrules/", token("alice"), ""))
		b.report.starts = append(b.report.starts, time.Since(start))
		demo.Stop()
		if err != nil {
			return err
		}
	}
	progress("  %v", median(b.report.starts))
	return nil
}

func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}
