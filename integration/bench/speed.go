package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

type speed struct {
	phase       time.Duration // of each load
	rounds      int           // loads of each host
	connections int
	only        string // prefix of the names of the measured operations
	against     string // path of another demo host, to compare with instead of the floor

	*servers
	demo, floor *process
}

func runSpeed(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench speed", flag.ContinueOnError)
	s := &speed{}
	flags.DurationVar(&s.phase, "phase", 500*time.Millisecond, "`TIME` of each load")
	flags.IntVar(&s.rounds, "rounds", 8, "`NUMBER` of loads on each host")
	flags.IntVar(&s.connections, "connections", 16, "`NUMBER` of connections, each with one request at a time")
	flags.StringVar(&s.only, "only", "", "measure only operations whose names begin with `TEXT`")
	flags.StringVar(&s.against, "against", "", "compare with the demo host in `FILE` instead of the floor, for example before and after a change")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.phase <= 0 || s.rounds < 1 || s.connections < 1 || s.connections > 1000 || flags.NArg() > 0 {
		return errNothing
	}
	s.servers, err = startRedis(ctx)
	defer s.close()
	if err != nil {
		return err
	}
	if s.demo, err = s.startDemo(ctx, ""); err != nil {
		return err
	}
	if s.against != "" {
		s.floor, err = s.startDemo(ctx, s.against)
	} else {
		s.floor, err = s.start(self("floor", s.address), floorGreeting)
	}
	if err != nil {
		return err
	}
	return s.measure(ctx)
}

func (s *speed) measure(ctx context.Context) error {
	printMachine("%d connections, %d rounds of %v on either host in turn, medians", s.connections, s.rounds, s.phase)
	fmt.Println("| Operation | rules beside the defaults | floor/s | demo host/s | ratio | CPU floor | CPU demo host | CPU ratio | goal | p99 |")
	fmt.Println("|" + strings.Repeat("---|", 10))
	users, filled := 0, -1
	for _, o := range operations() {
		if !strings.HasPrefix(o.name, s.only) {
			continue
		}
		if filled != o.rules {
			var err error
			if users, err = s.fillUsers(ctx, o.rules); err != nil {
				return err
			}
			filled = o.rules
		}
		if err := s.compare(ctx, o, users); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return nil
}

// fillUsers writes the users' rules to Redis, and sets three pushers for each user with the default rules. It returns
// the number of users, which is small for large rule sets, so that the host can cache all sets.
func (s *speed) fillUsers(ctx context.Context, rules int) (users int, err error) {
	if users = 1000; rules > 0 {
		users = max(32, s.connections)
	}
	for n := range users {
		text, err := event(userName(n), rules)
		if err != nil {
			return 0, err
		}
		if err := s.redis.Set(ctx, stored.Keys{}.Rules(userID(userName(n))), text, 0).Err(); err != nil {
			return 0, err
		}
		for i := 0; i < 3 && rules == 0; i++ {
			if _, err := ask(s.demo.address, newPusher.request(userName(n), i-3)); err != nil {
				return 0, err
			}
		}
	}
	return users, nil
}

func userName(n int) string { return fmt.Sprintf("user%d", n) }

// event returns the stored event of a user with the default rules and a number of room rules.
func event(user string, rooms int) (string, error) {
	rules := make([]string, rooms)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule_id":%q,"default":false,"enabled":true,"actions":["notify"]}`, roomID(i))
	}
	defaults := pushrule.ServerDefault(userID(user))
	set, err := pushrule.Read(strings.Replace(defaults.JSON(), `"room":[`, `"room":[`+strings.Join(rules, ","), 1))
	e := stored.Event{Rules: set, Found: true}
	return e.Text(stored.Revision{}.Next(1, stored.Write{Writer: "BENCH", Attempt: 1})), err
}

// turns returns the next user of a connection, and the number of requests that the connection has made for this user.
// Connections share no user. The number makes each change differ from the previous one: the host answers an equal
// change without a write.
func (s *speed) turns(users int) func(connection int) (user string, n int) {
	each, made := users/s.connections, make([]int, s.connections)
	return func(connection int) (string, int) {
		n := made[connection]
		made[connection]++
		return userName(connection*each + n%each), n / each
	}
}

func (s *speed) compare(ctx context.Context, o operation, users int) error {
	bytes, err := ask(s.demo.address, o.request(userName(0), 0))
	if err != nil {
		return err
	}
	ofDemo, ofFloor := s.turns(users), s.turns(users)
	askDemo := func(c int) []byte { return o.request(ofDemo(c)) }
	askFloor := func(c int) []byte {
		user, n := ofFloor(c)
		return o.floorRequest(user, n, bytes)
	}
	if s.against != "" {
		askFloor = askDemo
	}
	var floor, demo []outcome
	for range s.rounds {
		if err := s.load(ctx, s.floor, askFloor, &floor); err != nil {
			return err
		}
		if err := s.load(ctx, s.demo, askDemo, &demo); err != nil {
			return err
		}
	}
	printRow(o, floor, demo)
	return nil
}

func (s *speed) load(ctx context.Context, host *process, request func(int) []byte, outcomes *[]outcome) error {
	var found outcome
	redis, err := s.redisCPUOf(ctx, func() (err error) {
		cpu := host.cpu()
		found, err = load{host.address, s.connections, s.phase, request}.run(ctx)
		found.host = host.cpu() - cpu
		return err
	})
	found.redis = redis
	*outcomes = append(*outcomes, found)
	return err
}

func printRow(o operation, floor, demo []outcome) {
	rate := func(o outcome) float64 { return o.rate }
	p99 := func(o outcome) time.Duration { return o.p99 }
	ratios := make([]float64, len(demo))
	for i := range demo {
		ratios[i] = demo[i].rate / floor[i].rate
	}
	goal := ""
	if o.goal > 0 {
		goal = fmt.Sprintf("%.2f", o.goal)
	}
	floorHost, floorRedis := perRequest(floor)
	demoHost, demoRedis := perRequest(demo)
	fmt.Printf("| %s | %d | %.0f | %.0f | %.2f | %s + %s | %s + %s | %.2f | %s | %s, %s |\n", o.name, o.rules,
		medianOf(floor, rate), medianOf(demo, rate), quantile(ratios, .5), us(floorHost), us(floorRedis), us(demoHost), us(demoRedis),
		float64(floorHost+floorRedis)/float64(demoHost+demoRedis), goal, ms(medianOf(floor, p99)), ms(medianOf(demo, p99)))
}

// perRequest returns the CPU times of a request in all rounds.
func perRequest(outcomes []outcome) (host, redis time.Duration) {
	requests := time.Duration(0)
	for _, o := range outcomes {
		requests, host, redis = requests+time.Duration(o.requests), host+o.host, redis+o.redis
	}
	return host / requests, redis / requests
}
