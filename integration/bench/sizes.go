package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	sending "github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// What the plan assumes.
const (
	readsADay, changesADay = 20, 1 // of a user's rules
	peak                   = 10.   // times the average of a day
	masterCores            = 0.5   // of Redis, which has one
	masterBytes            = 16 << 30
	hostCores              = 2. // for the module, at the peak
	answerTime             = 50 * time.Millisecond
	keptBytes              = 200 // that a host keeps of a user whose rules it has read

	sizesCallers = 4 // of a host that is half busy: more of them would share round trips
)

// sizes measures what work costs, and computes what many users need.
type sizes struct {
	users int // of which the costs are measured
	phase time.Duration
	check bool

	*servers
	gateway string
	result  match.Result
	hosts   []*pushfx.Push
	running sync.WaitGroup
	events  atomic.Int64
	sent    atomic.Int64
	slots   chan struct{} // bounds what is added and not sent yet, unless it is nil

	works                  []*sizesWork
	idle, message          cost    // of a second of a host; of a change at each further host
	index                  float64 // what the index has of Redis' part of a notification
	bytes, waiting, listed float64 // of a user, a notification that waits, a user in the index
}

// sizesWork is a kind of work for random users.
type sizesWork struct {
	name string
	aDay func(notifications float64) float64 // of a user
	do   func(ctx context.Context, host *pushfx.Push, user mxid.UserID) error
	cost
}

// cost is CPU time of hosts and of Redis, in seconds.
type cost struct{ host, redis float64 }

func (c cost) plus(o cost, times float64) cost {
	return cost{c.host + times*o.host, c.redis + times*o.redis}
}
func (c cost) String() string { return fmt.Sprintf("%.1f + %.1f µs", c.host*1e6, c.redis*1e6) }

func runSizes(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench sizes", flag.ContinueOnError)
	s := &sizes{}
	flags.IntVar(&s.users, "users", 20_000, "`NUMBER` of users of which the costs are measured")
	flags.DurationVar(&s.phase, "phase", 3*time.Second, "`TIME` of each measurement")
	flags.BoolVar(&s.check, "check", false, "check two rows by running them: 8 hosts, and the data of 1,000,000 users (7 GB)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.users < 1000 || s.users%1000 != 0 || s.phase <= 0 || flags.NArg() > 0 {
		return errNothing
	}
	s.servers, err = startRedis(ctx)
	defer s.close()
	if err != nil {
		return err
	}
	process, err := s.start(self("gateway"), gatewayGreeting)
	if err != nil {
		return err
	}
	s.gateway = "http://" + process.address + pusher.NotifyPath
	if s.result, err = notifyingResult(); err != nil {
		return err
	}
	defer s.running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := s.measure(ctx); err != nil {
		return err
	}
	s.print()
	if s.check {
		return errors.Join(s.checkHosts(ctx), s.checkData(ctx))
	}
	return nil
}

const gatewayGreeting = "gateway listens on "

// serveGateway is the process of a push gateway. It serves until ctx ends.
func serveGateway(ctx context.Context, _ []string) error {
	g, err := newGateway()
	if err != nil {
		return err
	}
	fmt.Println(gatewayGreeting + g.server.Addr)
	for {
		select {
		case <-g.arrivals:
		case <-ctx.Done():
			return g.server.Close()
		}
	}
}

// Post implements [module.Gateway]. It counts answers.
func (s *sizes) Post(ctx context.Context, url string, body []byte) (module.GatewayAnswer, error) {
	answer, err := sizesGateway.Post(ctx, url, body)
	if err == nil {
		s.sent.Add(1)
		select {
		case <-s.slots:
		default:
		}
	}
	return answer, err
}

var sizesGateway = sending.NewHTTPGateway(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}})

// addHost adds a host, which works in the background only after run. Its stores cache nothing:
// their caches have place for a small part of many users.
func (s *sizes) addHost(ctx context.Context) (*pushfx.Push, error) {
	client := redis.NewClient(&redis.Options{Addr: s.address, ContextTimeoutEnabled: true})
	config := pushfx.DefaultConfig()
	config.Redis.CacheBytes = 0
	host, err := newPush(ctx, client, pushfx.Options{Unread: &pushfx.UnreadOptions{}, Delivery: &pushfx.DeliveryOptions{Gateway: s}}, config)
	s.hosts = append(s.hosts, host)
	return host, err
}

func (s *sizes) run(ctx context.Context, host *pushfx.Push) { s.running.Go(func() { host.Run(ctx) }) }

func sizesUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%08d:example.org", n)) }

// fill stores users from first on: default rules, five of rooms, a pusher, and three unread
// notifications.
func (s *sizes) fill(ctx context.Context, first, users int) error {
	var rooms []string
	for n := range 5 {
		rooms = append(rooms, fmt.Sprintf(`{"rule_id":%q,"default":false,"enabled":true,"actions":[]}`, benchRoom(n)))
	}
	rules := `{"global":{"override":[],"content":[],"room":[` + strings.Join(rooms, ",") + `],"sender":[],"underride":[]}}`
	const callers = 64
	return sideBySide(ctx, callers, func(ctx context.Context, caller int) (err error) {
		for n := first + caller; n < users && err == nil; n += callers {
			_, err = s.hosts[0].Host.Import(ctx, sizesUser(n), module.Import{Rules: rules, Pushers: []pusher.Pusher{{
				Key: pusher.Key{AppID: "im.example.app.android", Pushkey: fmt.Sprintf("%0142d:APA91b", n)}, Kind: pusher.HTTP,
				AppDisplayName: "Example Messenger", DeviceDisplayName: "Alice's phone", Lang: "en", Device: "ABCDEFGHIJ",
				Data: `{"url":"` + s.gateway + `","format":"event_id_only"}`,
			}}}, module.StoreImport)
			for range 3 {
				err = cmp.Or(err, s.addUnread(ctx, s.hosts[0], sizesUser(n)))
			}
		}
		return err
	})
}

func (s *sizes) memory(ctx context.Context) float64 {
	used, _ := strconv.ParseFloat(s.redis.InfoMap(ctx, "memory").Item("Memory", "used_memory"), 64)
	return used
}

func (s *sizes) addUnread(ctx context.Context, host *pushfx.Push, user mxid.UserID) error {
	n := s.events.Add(1)
	at := module.Place{Room: benchRoom(int(n % 3)), Position: n, Thread: module.MainThread}
	return host.Unread.Add(ctx, at, module.Decisions{{User: user, Result: s.result}})
}

func (s *sizes) notify(ctx context.Context, host *pushfx.Push, user mxid.UserID) error {
	if s.slots != nil {
		s.slots <- struct{}{}
	}
	event := message(int(s.events.Add(1)))
	decisions, err := host.Notifier.Decide(ctx, event, []match.Member{{User: user}})
	if err == nil {
		err = host.Notifier.Notify(ctx, event, decisions)
	}
	return err
}

func (s *sizes) allWorks() []*sizesWork {
	asNotifications := func(n float64) float64 { return n }
	return []*sizesWork{
		{name: "a read of rules", aDay: func(float64) float64 { return readsADay }, do: func(ctx context.Context, host *pushfx.Push, user mxid.UserID) error {
			_, err := host.Rules.Content(ctx, user)
			return err
		}},
		{name: "a change of rules", aDay: func(float64) float64 { return changesADay }, do: func(ctx context.Context, host *pushfx.Push, user mxid.UserID) error {
			sound := pushrule.Action(fmt.Sprintf(`{"set_tweak":"sound","value":"%d"}`, s.events.Add(1)))
			return host.Rules.SetActions(ctx, user, pushrule.Room, benchRoom(0), []pushrule.Action{`"notify"`, sound})
		}},
		{name: "an unread event", aDay: asNotifications, do: s.addUnread},
		{name: "a read mark", aDay: asNotifications, do: func(ctx context.Context, host *pushfx.Push, user mxid.UserID) error {
			n := s.events.Load()
			return host.Unread.Read(ctx, user, benchRoom(int(n%3)), module.AllThreads, n)
		}},
		{name: "a notification, decided and sent", aDay: asNotifications, do: s.notify},
	}
}

// perCall returns the cost of a call by a few callers, beside what idle hosts do.
func (s *sizes) perCall(ctx context.Context, do func(context.Context, *pushfx.Push, mxid.UserID) error) (cost, error) {
	var calls atomic.Int64
	spent, err := s.spent(ctx, func() error {
		until := time.Now().Add(s.phase)
		return sideBySide(ctx, sizesCallers, func(ctx context.Context, _ int) error {
			for time.Now().Before(until) {
				calls.Add(1)
				if err := do(ctx, s.hosts[0], sizesUser(rand.N(s.users))); err != nil {
					return err
				}
			}
			return nil
		})
	})
	spent = spent.plus(s.idle, -float64(len(s.hosts))*s.phase.Seconds())
	return cost{}.plus(spent, 1/float64(calls.Load())), err
}

func (s *sizes) spent(ctx context.Context, do func() error) (cost, error) {
	before := ownCPU()
	redis, err := s.redisCPUOf(ctx, do)
	return cost{(ownCPU() - before).Seconds(), redis.Seconds()}, err
}

// measureIdle measures the hosts without other work: looks, and checks of versions.
func (s *sizes) measureIdle(ctx context.Context) error {
	spent, err := s.spent(ctx, func() error {
		time.Sleep(2 * s.phase)
		return ctx.Err()
	})
	s.idle = cost{}.plus(spent, 1/(2*s.phase.Seconds()*float64(len(s.hosts))))
	return err
}

func (s *sizes) measure(ctx context.Context) error {
	host, err := s.addHost(ctx)
	if err != nil {
		return err
	}
	empty := s.memory(ctx)
	if err := s.fill(ctx, 0, s.users); err != nil {
		return err
	}
	full := s.memory(ctx)
	const wait = 1000 // notifications that nobody sends yet
	for n := range wait {
		if err := s.notify(ctx, host, sizesUser(n)); err != nil {
			return err
		}
	}
	s.bytes, s.waiting = (full-empty)/float64(s.users), (s.memory(ctx)-full)/wait
	s.slots = make(chan struct{}, 256)
	s.run(ctx, host)
	if err := s.measureIdle(ctx); err != nil {
		return err
	}
	s.works = s.allWorks()
	for _, w := range s.works {
		s.redis.ConfigResetStat(ctx)
		if w.cost, err = s.perCall(ctx, w.do); err != nil {
			return err
		}
	}
	if err := s.measureIndex(ctx); err != nil {
		return err
	}
	const more = 7
	for range more {
		host, err := s.addHost(ctx)
		if err != nil {
			return err
		}
		s.run(ctx, host)
	}
	time.Sleep(time.Second) // they watch
	if err := s.measureIdle(ctx); err != nil {
		return err
	}
	change := s.works[1]
	with, err := s.perCall(ctx, change.do)
	s.message = cost{}.plus(with.plus(change.cost, -1), 1./more)
	return err
}

var commandTime = regexp.MustCompile(`(?m)^cmdstat_([a-z]+):calls=\d+,usec=(\d+)`)

// measureIndex follows the notifications. The index has as much of the scripts' time as its
// sorted sets have of the time of the commands in them.
func (s *sizes) measureIndex(ctx context.Context) error {
	sorted, all := 0., 1.
	for _, found := range commandTime.FindAllStringSubmatch(s.redis.Info(ctx, "commandstats").Val(), -1) {
		if took, _ := strconv.ParseFloat(found[2], 64); !strings.HasPrefix(found[1], "eval") {
			all += took
			if found[1][0] == 'z' {
				sorted += took
			}
		}
	}
	s.index = sorted / all
	const users = 100_000 // of a gateway that is away
	before := s.memory(ctx)
	_, err := s.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range users {
			p.ZAdd(ctx, "bench", redis.Z{Score: float64(time.Now().UnixMicro()), Member: string(sizesUser(n))})
		}
		return nil
	})
	s.listed = (s.memory(ctx) - before) / users
	return cmp.Or(err, s.redis.Del(ctx, "bench").Err())
}

// plan is what a number of users need.
type plan struct {
	peak           float64 // notifications a second
	bytes          float64
	busy           cost // cores, of all hosts and masters
	masters, hosts float64
	index          float64 // how much of its half core a master with a shard uses for the index
	pays           float64 // up to so many hosts, messages of changes cost less than the reads that they save
	outage         float64 // seconds until what has waited for half of the users for an hour is sent
}

func (s *sizes) plan(users, notifications float64) plan {
	config, aDay := pushfx.DefaultConfig(), (24 * time.Hour).Seconds()
	p := plan{peak: users * notifications * peak / aDay, masters: 1, hosts: 2}
	anHour := users / 2 * notifications / 24
	p.bytes = users*s.bytes + anHour*s.waiting + users/2*s.listed
	changes := users * changesADay * peak / aDay
	for range 20 { // hosts cost Redis something, which needs masters
		p.busy = cost{}.plus(s.idle, p.hosts).plus(s.message, changes*p.hosts)
		for _, w := range s.works {
			p.busy = p.busy.plus(w.cost, users*w.aDay(notifications)*peak/aDay)
		}
		p.hosts = max(2, math.Ceil(p.busy.host/hostCores))
	}
	p.masters = max(1, math.Ceil(p.busy.redis/masterCores), math.Ceil(p.bytes/masterBytes))
	read, notification := s.works[0].cost, s.works[4].cost
	p.index = p.peak * notification.redis * s.index / min(p.masters, float64(config.Delivery.Shards)) / masterCores
	kept := float64(config.Changes.MaxBytes) / 2 / keptBytes
	saves := notifications * min(1, kept/users) * (read.host + read.redis)
	p.pays = saves / (changesADay * (s.message.host + s.message.redis))
	p.outage = anHour / p.hosts / min(hostCores/notification.host, float64(config.Delivery.MaxPerGateway)/answerTime.Seconds())
	return p
}

func (s *sizes) print() {
	printMachine("%d users, %v of each kind of work, %d callers", s.users, s.phase, sizesCallers)
	fmt.Println("| Work | CPU host + Redis |\n|---|---|")
	for _, w := range s.works {
		fmt.Printf("| %s | %s |\n", w.name, w.cost)
	}
	fmt.Printf("| the message of a change, to each further host | %s |\n| a second of an idle host | %s |\n", s.message, s.idle)
	fmt.Printf("\nA user takes %.0f bytes, a notification that waits %.0f, a user in the index %.0f. The index has %.0f %% of Redis' part of a notification.\n\n",
		s.bytes, s.waiting, s.listed, 100*s.index)
	fmt.Println("| Users | notifications a day | at the peak | data | masters | hosts | index | messages pay up to | outage |")
	fmt.Println("|" + strings.Repeat("---|", 9))
	for _, users := range []float64{1e5, 1e6, 1e7} {
		for _, notifications := range []float64{10, 100} {
			p := s.plan(users, notifications)
			fmt.Printf("| %.0f | %.0f | %.0f/s | %.1f GiB | %.0f | %.0f | %.0f %% | %.1f hosts | %.0f s |\n", users, notifications,
				p.peak, p.bytes/(1<<30), p.masters, p.hosts, 100*p.index, p.pays, p.outage)
		}
	}
}

// checkHosts runs the work of a peak of 100,000 users with 100 notifications a day on 8 hosts,
// and compares its cost with the computed one.
func (s *sizes) checkHosts(ctx context.Context) error {
	const callers, seconds = 32, 20.
	want, made, began := cost{}.plus(s.idle, 8), make([]atomic.Int64, len(s.works)), time.Now()
	got, err := s.spent(ctx, func() error {
		return sideBySide(ctx, callers*len(s.works), func(ctx context.Context, i int) error {
			w, made := s.works[i/callers], &made[i/callers]
			every := time.Duration(float64(24*time.Hour) / (1e5 * w.aDay(100) * peak))
			for time.Since(began).Seconds() < seconds {
				n := made.Add(1)
				time.Sleep(time.Until(began.Add(time.Duration(n) * every)))
				if err := w.do(ctx, s.hosts[n%8], sizesUser(rand.N(s.users))); err != nil {
					return err
				}
			}
			return nil
		})
	})
	took := time.Since(began).Seconds()
	for i, w := range s.works {
		want = want.plus(w.cost, float64(made[i].Load())/took)
	}
	want = want.plus(s.message, 7*float64(made[1].Load())/took)
	fmt.Printf("\n8 hosts, %.0f notifications a second: %.2f + %.2f cores, computed %.2f + %.2f.\n",
		float64(made[4].Load())/took, got.host/took, got.redis/took, want.host, want.redis)
	return err
}

// checkData compares the size of the data of 1,000,000 users with the computed one. Their keys
// are copies of the first user's.
func (s *sizes) checkData(ctx context.Context) error {
	const users, some = 1_000_000, 1000
	first := string(sizesUser(0))
	names, err := s.redis.Keys(ctx, "*{"+first+"}*").Result()
	claims, failed := s.redis.Keys(ctx, "pushkey:*").Result()
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	names = append(names, claims[0])
	dumps := make([]string, len(names))
	for i, name := range names {
		if dumps[i], err = s.redis.Dump(ctx, name).Result(); err != nil {
			return err
		}
	}
	before := s.memory(ctx)
	for from := s.users; from < users; from += some {
		_, err := s.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n := from; n < from+some; n++ {
				for i, name := range names[:len(names)-1] {
					p.Restore(ctx, strings.Replace(name, first, string(sizesUser(n)), 1), 0, dumps[i])
				}
				p.Restore(ctx, fmt.Sprintf("%s%08d", claims[0][:len(claims[0])-8], n), 0, dumps[len(names)-1])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	got := (s.memory(ctx) - before) / float64(users-s.users)
	fmt.Printf("\nThe data of 1,000,000 users: %.2f GiB, computed %.2f.\n", got*users/(1<<30), s.bytes*users/(1<<30))
	return nil
}

func notifyingResult() (match.Result, error) {
	event, err := match.ReadEvent(`{"type":"m.room.message","content":{"body":"hello"}}`)
	if err != nil {
		return match.Result{}, err
	}
	return match.Compile(pushrule.ServerDefault("@a:b")).Evaluate(event, match.Facts{User: "@a:b"}), nil
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // cannot fail for the process itself
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func benchRoom(n int) string { return fmt.Sprintf("!room%014d:example.org", n) }
