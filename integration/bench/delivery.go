package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// deliveryUsers is the number of notified users. Each user has a pusher.
const deliveryUsers = 1000

// delivery is a host that hands events over, and a gateway.
type delivery struct {
	rounds        int // rounds of a measurement; delivery and the bare client both send in each round
	notifications int // per round
	events        int // number of events so far

	*servers
	push      *pushfx.Push // hands events over, and sends no notifications
	decisions module.Decisions
	gateway   *gateway
}

// runDelivery measures delivery, with events for one user and for a thousand users.
func runDelivery(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench delivery", flag.ContinueOnError)
	d := &delivery{}
	flags.IntVar(&d.rounds, "rounds", 5, "`NUMBER` of rounds; in each, delivery sends and then the bare client")
	flags.IntVar(&d.notifications, "notifications", 30_000, "`NUMBER` of notifications per round, at most 50,000, which backlogs can hold")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if d.rounds < 1 || d.notifications < deliveryUsers || d.notifications > 50*deliveryUsers || flags.NArg() > 0 {
		return errNothing
	}
	d.servers, err = startRedis(ctx)
	defer d.close()
	if err != nil {
		return err
	}
	if d.push, err = newPush(ctx, d.redis, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}}, pushfx.DefaultConfig()); err != nil {
		return err
	}
	if d.gateway, err = newGateway(); err != nil {
		return err
	}
	defer d.gateway.server.Close()
	if err := errors.Join(d.setPushers(ctx), d.decide(ctx)); err != nil {
		return err
	}
	printMachine("%d rounds of %d notifications in turn, medians", d.rounds, d.notifications)
	fmt.Println("| Measure | delivery | bare client | ratio | goal |\n|---|---|---|---|---|")
	return errors.Join(d.measureCPU(ctx, 1, "25 µs"), d.measureCPU(ctx, deliveryUsers, "8 µs"), d.whileSending(ctx, func(ctx context.Context) error {
		return errors.Join(d.measureDirect(ctx, 1, "25 µs"), d.measureDirect(ctx, deliveryUsers, "8 µs"), d.measureLatency(ctx))
	}))
}

// newPush returns the module, which sends only while Push.Run runs. It posts to this machine.
func newPush(ctx context.Context, client redis.UniversalClient, options pushfx.Options, config pushfx.Config) (*pushfx.Push, error) {
	config.PusherPolicy.AllowHTTP = true
	config.PusherPolicy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	push, err := pushfx.New(client, config, options)
	if err != nil {
		return nil, err
	}
	return push, push.Check(ctx)
}

// runSender is the process of a host that sends the backlog until ctx ends. The argument is
// the address of the Redis.
func runSender(ctx context.Context, args []string) error {
	client := redis.NewClient(&redis.Options{Addr: args[0], ContextTimeoutEnabled: true})
	defer client.Close()
	push, err := newPush(ctx, client, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}}, pushfx.DefaultConfig())
	if err == nil {
		push.Run(ctx)
	}
	return err
}

// postBare is the process of a bare client, which does the minimum of work: it posts its input over reused connections,
// each request with a deadline, and reads the answers. The arguments are the URL and the number of requests.
func postBare(ctx context.Context, args []string) error {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	const connections = 64
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	return sideBySide(ctx, connections, func(ctx context.Context, worker int) error {
		for i := worker; i < n; i += connections {
			if err := post(ctx, client, args[0], string(body)); err != nil {
				return err
			}
		}
		return nil
	})
}

func post(ctx context.Context, client *http.Client, url, body string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

func deliveryUser(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%06d:example.org", n)) }

func (d *delivery) setPushers(ctx context.Context) error {
	for i := range deliveryUsers {
		err := d.push.Pushers.Set(ctx, deliveryUser(i), pusher.Pusher{
			Key: pusher.Key{AppID: "org.example.app", Pushkey: string(deliveryUser(i))}, Kind: pusher.HTTP,
			AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en", Data: `{"url":"` + d.gateway.url + `"}`,
		}, pusher.KeepOthers)
		if err != nil {
			return err
		}
	}
	return nil
}

// message returns event n of a room. Its notification has about a thousand bytes.
func message(n int) module.Event {
	return module.Event{Room: match.Room{MemberCount: deliveryUsers}, JSON: fmt.Sprintf(
		`{"event_id":"$%09d","room_id":"!room:example.org","type":"m.room.message","sender":"@bob:example.org","content":{"msgtype":"m.text","body":"%s"}}`,
		n, strings.Repeat("x", 800),
	)}
}

// decide evaluates the push rules of all users. Its result is valid for all messages.
func (d *delivery) decide(ctx context.Context) (err error) {
	members := make([]match.Member, deliveryUsers)
	for i := range members {
		members[i].User = deliveryUser(i)
	}
	d.decisions, err = d.push.Notifier.Decide(ctx, message(0), members)
	return err
}

// notify hands event n over to a number of users. The next event goes to the next users.
func (d *delivery) notify(ctx context.Context, n, users int) error {
	first := n * users % deliveryUsers
	return d.push.Notifier.Notify(ctx, message(n), d.decisions[first:first+users])
}

type gateway struct {
	server   *http.Server
	url      string
	arrivals chan arrival
}

type arrival struct {
	body string
	at   time.Time
}

func newGateway() (*gateway, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gateway{url: "http://" + listener.Addr().String() + pusher.NotifyPath, arrivals: make(chan arrival, 1<<16)}
	g.server = &http.Server{Addr: listener.Addr().String(), Handler: g}
	go g.server.Serve(listener)
	return g, nil
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	io.WriteString(w, `{"rejected":[]}`)
	g.arrivals <- arrival{string(body), at}
}

// wait waits until n notifications have arrived, and returns the last notification.
func (g *gateway) wait(ctx context.Context, n int) (last arrival, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for i := range n {
		select {
		case last = <-g.arrivals:
		case <-ctx.Done():
			return last, fmt.Errorf("%d of %d notifications have arrived: %w", i, n, ctx.Err())
		}
	}
	return last, nil
}

// deliveryRound has CPU times per notification: of Redis while a host hands it over, of Redis while a host sends it,
// and of the processes of the sender and the bare client.
type deliveryRound struct{ handOver, send, sender, bare time.Duration }

// measureCPU measures CPU times with events that each notify a number of users.
func (d *delivery) measureCPU(ctx context.Context, users int, redisGoal string) error {
	rounds := make([]deliveryRound, d.rounds)
	for i := range rounds {
		var err error
		if rounds[i], err = d.round(ctx, users); err != nil {
			return err
		}
	}
	sender := medianOf(rounds, func(r deliveryRound) time.Duration { return r.sender })
	bare := medianOf(rounds, func(r deliveryRound) time.Duration { return r.bare })
	ratio := medianOf(rounds, func(r deliveryRound) float64 { return float64(r.sender) / float64(r.bare) })
	fmt.Printf("| CPU of the sender for a notification, events to %d | %s µs | %s µs | %.2f | 1.5 |\n", users, us(sender), us(bare), ratio)
	handOver := medianOf(rounds, func(r deliveryRound) time.Duration { return r.handOver })
	send := medianOf(rounds, func(r deliveryRound) time.Duration { return r.send })
	fmt.Printf("| CPU of Redis for a notification, events to %d: add + send | %s + %s µs | | | %s |\n", users, us(handOver), us(send), redisGoal)
	return nil
}

// round hands events over, and then starts a host that only sends them. Then the bare client sends as many requests.
func (d *delivery) round(ctx context.Context, users int) (r deliveryRound, err error) {
	const callers = 16
	events := d.notifications / users
	n := events * users
	r.handOver, err = d.redisCPUOf(ctx, func() error {
		return sideBySide(ctx, callers, func(ctx context.Context, caller int) error {
			for e := caller; e < events; e += callers {
				if err := d.notify(ctx, d.events+e, users); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return r, err
	}
	d.events += events
	var last arrival
	r.send, err = d.redisCPUOf(ctx, func() error {
		host, err := d.start(self("sender", d.address), "")
		if err != nil {
			return err
		}
		last, err = d.gateway.wait(ctx, n)
		host.stop()
		r.sender = host.wait()
		return err
	})
	if err != nil {
		return r, err
	}
	bare := self("bare-client", d.gateway.url, strconv.Itoa(n))
	bare.Stdin = strings.NewReader(last.body)
	client, err := d.start(bare, "")
	if err != nil {
		return r, err
	}
	_, err = d.gateway.wait(ctx, n)
	r.bare = client.wait()
	for _, part := range []*time.Duration{&r.handOver, &r.send, &r.sender, &r.bare} {
		*part /= time.Duration(n)
	}
	return r, err
}

// whileSending calls do while this process also sends.
func (d *delivery) whileSending(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.push.Run(ctx)
	}()
	defer func() { <-ended }()
	defer stop()
	return do(ctx)
}

// measureDirect hands over events that each notify a number of users, and waits for the arrival before it hands over
// more. So no backlog forms: the host claims most notifications in the round trip that hands them over, and sends them
// itself.
func (d *delivery) measureDirect(ctx context.Context, users int, goal string) error {
	atOnce := max(1, 64/users) // events
	rounds := d.notifications / users / atOnce
	spent, err := d.redisCPUOf(ctx, func() error {
		for range rounds {
			first := d.events
			d.events += atOnce
			notify := func(ctx context.Context, i int) error { return d.notify(ctx, first+i, users) }
			if err := sideBySide(ctx, atOnce, notify); err != nil {
				return err
			}
			if _, err := d.gateway.wait(ctx, atOnce*users); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	each := spent / time.Duration(rounds*atOnce*users)
	fmt.Printf("| CPU of Redis, events to %d, sent by the host that adds them | %s µs | | | %s |\n", users, us(each), goal)
	return nil
}

// measureLatency sends one notification after the other. It measures the time from the call of Notify to the arrival,
// and the time of a bare POST with the same body.
func (d *delivery) measureLatency(ctx context.Context) error {
	const notifications = 1000
	var sent, bare []time.Duration
	for i := range notifications {
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		if err := d.notify(ctx, d.events+i, 1); err != nil {
			return err
		}
		ours, err := d.gateway.wait(ctx, 1)
		if err != nil {
			return err
		}
		sent, began = append(sent, ours.at.Sub(began)), time.Now()
		if err := post(ctx, http.DefaultClient, d.gateway.url, ours.body); err != nil {
			return err
		}
		theirs, err := d.gateway.wait(ctx, 1)
		if err != nil {
			return err
		}
		bare = append(bare, theirs.at.Sub(began))
	}
	sent = sent[1:] // the first notification waits until the host has started
	for _, percent := range []int{50, 99} {
		ours, theirs := quantile(sent, float64(percent)/100), quantile(bare, float64(percent)/100)
		fmt.Printf("| from Notify to the gateway, one at a time, p%d | %s | %s | %.1f | %s |\n",
			percent, ms(ours), ms(theirs), float64(ours)/float64(theirs), map[int]string{99: "50 ms"}[percent])
	}
	return nil
}
