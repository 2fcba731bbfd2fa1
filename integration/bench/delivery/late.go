package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/bench/servers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// arrival is a notification that has arrived.
type arrival struct {
	event, pushkey string
}

func readArrival(body []byte) (a arrival) {
	var n struct {
		Notification struct {
			EventID string `json:"event_id"`
			Devices []struct {
				Pushkey string `json:"pushkey"`
			} `json:"devices"`
		} `json:"notification"`
	}
	if err := json.Unmarshal(body, &n); err == nil && len(n.Notification.Devices) == 1 {
		a = arrival{n.Notification.EventID, n.Notification.Devices[0].Pushkey}
	}
	return a
}

// idlePosts is how many notifications are sent on an idle system, and idlePause
// how long it idles before each.
const (
	idlePosts = 100
	idlePause = 20 * time.Millisecond
)

// measureIdle measures from the beginning of Notify to the arrival at the gateway,
// beside one XADD and one POST of the same.
func (b *bench) measureIdle(ctx context.Context) error {
	if err := b.setPushers(ctx, 1); err != nil {
		return err
	}
	if _, err := b.runHost(ctx); err != nil {
		return err
	}
	decisions, err := b.decide(ctx, 1)
	if err != nil {
		return err
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	var sent, bare []time.Duration
	for n := range idlePosts {
		took, err := b.untilArrival(ctx, func() error { return b.push.Notifier.Notify(ctx, message(n), "", decisions) })
		if err != nil {
			return err
		}
		sent = append(sent, took)
		body := b.gateway.lastBody()
		took, err = b.untilArrival(ctx, func() error {
			if err := b.Client.XAdd(ctx, &redis.XAddArgs{Stream: "bare", Values: []any{"data", body}}).Err(); err != nil {
				return err
			}
			return postOne(client, b.gateway.url(), body)
		})
		if err != nil {
			return err
		}
		bare = append(bare, took)
	}
	sent = sent[1:] // the host takes its shards before the first
	b.table.add(row{
		"hand-over to POST, idle, p50", ms(median(sent)), ms(median(bare[1:])) + " (one XADD, one POST)",
		times(by(median(sent), median(bare[1:]))), "4",
	})
	return nil
}

// untilArrival returns the time from the beginning of send until a notification
// arrives.
func (b *bench) untilArrival(ctx context.Context, send func() error) (time.Duration, error) {
	time.Sleep(idlePause)
	var arrived time.Time
	b.gateway.expect(1)
	b.gateway.notify(func(_ []byte, at time.Time) { arrived = at })
	began := time.Now()
	if err := send(); err != nil {
		return 0, err
	}
	if err := b.gateway.wait(ctx, patience); err != nil {
		return 0, err
	}
	return arrived.Sub(began), nil
}

// measureOutage has a gateway fail for a while, with a notification for each of
// many pushers, and measures from its return to the arrival of the last.
func (b *bench) measureOutage(ctx context.Context) error {
	if err := b.setPushers(ctx, b.held); err != nil {
		return err
	}
	if _, err := b.runHost(ctx); err != nil {
		return err
	}
	decisions, err := b.decide(ctx, b.held)
	if err != nil {
		return err
	}
	b.gateway.fail(true)
	if err := b.push.Notifier.Notify(ctx, message(0), "", decisions); err != nil {
		return err
	}
	select {
	case <-time.After(b.outage):
	case <-ctx.Done():
		return ctx.Err()
	}
	b.gateway.expect(b.held)
	began := time.Now()
	b.gateway.fail(false)
	if err := b.gateway.wait(ctx, patience); err != nil {
		return err
	}
	b.table.add(row{
		fmt.Sprintf("the last of %d held pushers, after an outage of %v", b.held, b.outage), seconds(time.Since(began)), "", "", "20 s",
	})
	return nil
}

// The load while a host is killed: 2,000 notifications a second.
const (
	killHosts    = 3
	killUsers    = 1000
	killMembers  = 10 // of an event
	killInterval = 5 * time.Millisecond
)

// deliveries is when notifications were handed over, and what became of them.
type deliveries struct {
	mu      sync.Mutex
	handed  map[arrival]time.Time
	got     map[arrival]int
	doubled int
	oldest  time.Duration // at its first arrival
}

func (d *deliveries) arrived(body []byte, at time.Time) {
	a := readArrival(body)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.got[a]++; d.got[a] > 1 {
		d.doubled++
		return
	}
	d.oldest = max(d.oldest, at.Sub(d.handed[a]))
}

func (d *deliveries) hand(event string, users []mxid.UserID, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, user := range users {
		d.handed[arrival{event, string(user)}] = at
	}
}

func (d *deliveries) missing() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.handed) - len(d.got)
}

// measureKill kills one of three hosts while events come.
func (b *bench) measureKill(ctx context.Context) error {
	if err := b.setPushers(ctx, killUsers); err != nil {
		return err
	}
	decisions, err := b.decide(ctx, killUsers)
	if err != nil {
		return err
	}
	var hosts []*servers.Process
	for range killHosts {
		host, err := b.runHost(ctx)
		if err != nil {
			return err
		}
		hosts = append(hosts, host)
	}
	d := &deliveries{handed: map[arrival]time.Time{}, got: map[arrival]int{}}
	b.gateway.notify(d.arrived)
	next, err := b.sendFor(ctx, d, decisions, 0)
	if err != nil {
		return err
	}
	hosts[0].Kill()
	if next, err = b.sendFor(ctx, d, decisions, next); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); d.missing() > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c := config().Delivery
	what := fmt.Sprintf("kill -9 of one of %d hosts, at %d/s: ", killHosts, killMembers*next*int(time.Second)/int(2*b.kill))
	b.table.add(row{what + "lost", strconv.Itoa(len(d.handed) - len(d.got)), fmt.Sprintf("of %d", len(d.handed)), "", "0"})
	b.table.add(row{"the longest from hand-over to arrival", seconds(d.oldest), "", "", "6 s"})
	b.table.add(row{"doubled", strconv.Itoa(d.doubled), "", "", strconv.Itoa(c.MaxInFlight + 64)})
	return nil
}

// sendFor hands events over for a while, at a steady rate. First and next are
// their numbers.
func (b *bench) sendFor(ctx context.Context, d *deliveries, decisions module.Decisions, first int) (next int, err error) {
	end := time.Now().Add(b.kill)
	for n := first; ; n++ {
		at := time.Now()
		if at.After(end) {
			return n, nil
		}
		from := n * killMembers % len(decisions)
		some := decisions[from : from+killMembers]
		users := make([]mxid.UserID, killMembers)
		for i, decision := range some {
			users[i] = decision.User
		}
		e := message(n)
		d.hand(eventID(n), users, at)
		if err := b.push.Notifier.Notify(ctx, e, "", some); err != nil {
			return n, err
		}
		time.Sleep(time.Until(at.Add(killInterval)))
	}
}
