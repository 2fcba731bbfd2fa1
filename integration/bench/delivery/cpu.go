package delivery

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pushfx/pushfx/integration/bench/servers"
)

// cpuUsers is how many users get the notifications.
const cpuUsers = 1000

// patience is for the last notification.
const patience = 2 * time.Minute

// sent is what it took to send notifications.
type sent struct {
	took   time.Duration
	sender time.Duration // CPU of the process that sends
	redis  time.Duration // CPU of Redis
}

// measureCPU has delivery and the bare client send the same notifications in
// turn: of events that go to one user each, and of events that go to a thousand.
// Events are handed over before they are sent, so that the process of the sender
// does nothing else.
func (b *bench) measureCPU(ctx context.Context) error {
	if err := b.setPushers(ctx, cpuUsers); err != nil {
		return err
	}
	for _, members := range []int{1, cpuUsers} {
		if err := b.measureCPUOf(ctx, members); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureCPUOf(ctx context.Context, members int) error {
	n := b.notifications / members * members
	var senders, redis, handing []time.Duration
	var bares []time.Duration
	var cpuRatios, rates []float64
	for round := range b.rounds {
		handed, s, err := b.sendHandedOver(ctx, n, members, round)
		if err != nil {
			return err
		}
		bare, err := b.sendBare(ctx, n)
		if err != nil {
			return err
		}
		each := time.Duration(n)
		senders, bares, redis, handing = append(senders, s.sender/each), append(bares, bare.sender/each), append(redis, s.redis/each), append(handing, handed/each)
		cpuRatios, rates = append(cpuRatios, by(s.sender, bare.sender)), append(rates, by(bare.took, s.took))
	}
	to := fmt.Sprintf("events to %d", members)
	b.table.add(row{"CPU of the sender a notification, " + to, us(median(senders)), us(median(bares)) + " (bare client)", times(median(cpuRatios)), "1.6"})
	b.table.add(row{"notifications a second, " + to, "", "(bare client)", times(median(rates)), "0.6"})
	toHand, toSend := median(handing), median(redis)
	b.table.add(row{"CPU of Redis a notification, " + to, fmt.Sprintf("%s (%s + %s)", us(toHand+toSend), us(toHand), us(toSend)), "(to hand over + to send)", "", "15 µs"})
	return nil
}

// sendHandedOver hands events over, and then has a host send them. It returns the
// CPU of Redis for the first, and what the second took.
func (b *bench) sendHandedOver(ctx context.Context, n, members, round int) (handed time.Duration, s sent, err error) {
	decisions, err := b.decide(ctx, cpuUsers)
	if err != nil {
		return 0, s, err
	}
	before, _, err := b.RedisCPU(ctx)
	if err != nil {
		return 0, s, err
	}
	err = inParallel(n/members, func(e int) error {
		from := e * members % cpuUsers
		return b.push.Notifier.Notify(ctx, message(round*n+e), strconv.Itoa(members), decisions[from:from+members])
	})
	if err != nil {
		return 0, s, err
	}
	after, _, err := b.RedisCPU(ctx)
	if err != nil {
		return 0, s, err
	}
	host, err := b.startHost()
	if err != nil {
		return 0, s, err
	}
	defer host.Stop()
	b.gateway.expect(n)
	s, err = b.costs(ctx, host, func() error {
		if _, err := ask(ctx, host, http.MethodPost, "/run", ""); err != nil {
			return err
		}
		return b.gateway.wait(ctx, patience)
	})
	return after - before, s, err
}

// sendBare has a host post the body that came last.
func (b *bench) sendBare(ctx context.Context, n int) (sent, error) {
	host, err := b.startHost()
	if err != nil {
		return sent{}, err
	}
	defer host.Stop()
	b.gateway.expect(n)
	body := string(b.gateway.lastBody())
	query := url.Values{"n": {strconv.Itoa(n)}, "url": {b.gateway.url()}}
	return b.costs(ctx, host, func() error {
		_, err := ask(ctx, host, http.MethodPost, "/bare?"+query.Encode(), body)
		return err
	})
}

// costs returns what it took a host and Redis to do something.
func (b *bench) costs(ctx context.Context, host *servers.Process, do func() error) (s sent, err error) {
	before, _, err := b.RedisCPU(ctx)
	if err != nil {
		return s, err
	}
	began, cpu := time.Now(), host.CPU()
	if err := do(); err != nil {
		return s, err
	}
	s.took, s.sender = time.Since(began), host.CPU()-cpu
	after, _, err := b.RedisCPU(ctx)
	s.redis = after - before
	return s, err
}
