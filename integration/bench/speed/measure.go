package speed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/bench/servers"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

// fewUsers is how many users make the requests, and how many there are at the
// start.
const fewUsers = 1000

// bench is the servers, and what was found.
type bench struct {
	plan
	*servers.Bed
	floor, demo *servers.Process
	program     string
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
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start of the demo host", b.measureStart},
		{"operations", b.measureOperations},
		{"growth with the set", b.measureSizes},
		{"one hot user", b.measureHotUser},
		{"memory", b.measureMemory},
		{"growth with users", b.measureUsers},
	} {
		progress("%v %s", time.Since(began).Round(time.Second), part.name)
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	progress("%v done", time.Since(began).Round(time.Second))
	b.report.plan = p
	return b.report.write(p.out)
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if b.floor, err = b.Start(self, greeting, "speed", "-floor", b.RedisAddress); err != nil {
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
			body := strings.Replace(pusher("key", i), `"key"`, fmt.Sprintf(`"%s-%d"`, user, i), 1)
			if _, err := ask(b.demo.Address, makeRequest("POST", prefix+"/pushers/set", token(user), body)); err != nil {
				return err
			}
		}
	}
	return nil
}

func userName(n int) string { return fmt.Sprintf("user%d", n) }

// fillUsers gives users the default rules, past the hosts.
func (b *bench) fillUsers(ctx context.Context, first, end int) error {
	const batch = 500
	for at := first; at < end; at += batch {
		_, err := b.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n := at; n < min(at+batch, end); n++ {
				p.Set(ctx, eventKey(userName(n)), event(userName(n), 0), 0)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// event is that of a user with the default rules and as many for rooms.
func event(user string, rooms int) string {
	rules := make([]string, rooms)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule_id":"!room%d:example.org","default":false,"enabled":true,"actions":["notify"]}`, i)
	}
	defaults := pushrule.ServerDefault(mxid.UserID("@" + user + ":localhost"))
	set := strings.Replace(defaults.JSON(), `"room":[`, `"room":[`+strings.Join(rules, ","), 1)
	return `{"type":"m.push_rules","content":{"global":` + set + `},"commit":{"version":1,"changes":1,"writers":{}}}`
}

// pair is the floor and the demo host under the same load, in turn.
type pair struct{ floor, demo []outcome }

// compare loads both hosts with an operation, in turn. User returns whose turn it
// is on a connection, and for which time.
func (b *bench) compare(ctx context.Context, o operation, user func(connection, n int) (string, int), rule string) (p pair, err error) {
	first, _ := user(0, 0)
	bytes, err := ask(b.demo.Address, o.request(first, rule, 0))
	if err != nil {
		return p, err
	}
	for range b.rounds {
		for _, side := range []struct {
			outcomes *[]outcome
			load     load
		}{
			{&p.floor, load{b.floor.Address, b.connections, b.phase, func(c, n int) []byte {
				name, visit := user(c, n)
				return o.floorRequest(name, visit, bytes)
			}}},
			{&p.demo, load{b.demo.Address, b.connections, b.phase, func(c, n int) []byte {
				name, visit := user(c, n)
				return o.request(name, rule, visit)
			}}},
		} {
			found, err := side.load.run(ctx)
			if err != nil {
				return p, fmt.Errorf("%s: %w", o.name, err)
			}
			*side.outcomes = append(*side.outcomes, found)
		}
	}
	return p, nil
}

// ownUser gives each connection users of its own, one after the other.
func (b *bench) ownUser(connection, n int) (string, int) {
	each := fewUsers / b.connections
	return userName(connection*each + n%each), n / each
}

func (b *bench) measureOperations(ctx context.Context) error {
	for _, o := range operations() {
		p, err := b.compare(ctx, o, b.ownUser, "")
		if err != nil {
			return err
		}
		b.report.operations = append(b.report.operations, row{o.name, o.goal, p})
		progress("  %s: %.2f", o.name, p.rate())
	}
	return nil
}

// largeUsers are those who have more rules than the defaults.
const largeUsers = 256

func (b *bench) ownLargeUser(connection, n int) (string, int) {
	each := largeUsers / b.connections
	return fmt.Sprintf("large%d", connection*each+n%each), n / each
}

func (b *bench) measureSizes(ctx context.Context) error {
	for _, size := range b.sizes {
		for n := range largeUsers {
			user := fmt.Sprintf("large%d", n)
			if err := b.Client.Set(ctx, eventKey(user), event(user, size), 0).Err(); err != nil {
				return err
			}
		}
		last := fmt.Sprintf("!room%d:example.org", size-1)
		for _, o := range grown() {
			p, err := b.compare(ctx, o, b.ownLargeUser, last)
			if err != nil {
				return err
			}
			b.report.sizes = append(b.report.sizes, sizeRow{row{o.name, 0, p}, size})
			progress("  %d rules, %s: %.2f", size, o.name, p.rate())
		}
	}
	return nil
}

// measureUsers compares how the demo host does against the floor with few and
// with many users in Redis, of whom any makes a request.
func (b *bench) measureUsers(ctx context.Context) error {
	have := 0
	for _, users := range []int{fewUsers, b.users} {
		if err := b.fillUsers(ctx, have, users); err != nil {
			return err
		}
		have = users
		for _, o := range []operation{operations()[0], operations()[5]} {
			p, err := b.compare(ctx, o, func(_, n int) (string, int) { return userName(rand.IntN(users)), n }, "")
			if err != nil {
				return err
			}
			b.report.users = append(b.report.users, sizeRow{row{o.name, 0, p}, users})
			progress("  %d users, %s: %.2f", users, o.name, p.rate())
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
	o := operations()[6]
	for range b.rounds {
		for i, writers := range []int{1, hotWriters} {
			found, err := load{demo.Address, writers, b.phase, func(c, n int) []byte {
				return makeRequest(o.method, fmt.Sprintf("%s/pushrules/global/room/!room%d:example.org", prefix, c), token("user0"), o.body(n))
			}}.run(ctx)
			if err != nil {
				return err
			}
			b.report.hot[i] = append(b.report.hot[i], found)
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
	for range max(3, b.rounds) {
		if _, err := (load{demo.Address, manyConnections, 2 * b.phase, func(c, n int) []byte {
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
