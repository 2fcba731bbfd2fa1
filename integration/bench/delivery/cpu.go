package delivery

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/bench/servers"
	"github.com/pushfx/pushfx/module/stored"
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

// cpuRound is what notifications took, each of the durations but bare.took and
// delivery.took divided by their number.
type cpuRound struct {
	handed         time.Duration // CPU of Redis to hand the events over
	log            time.Duration // CPU of Redis for a bare log
	delivery, bare sent
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
		all := make([]cpuRound, b.rounds)
		for i := range all {
			var err error
			if all[i], err = b.cpuRound(ctx, members, i); err != nil {
				return err
			}
		}
		b.reportCPU(fmt.Sprintf("events to %d", members), all)
	}
	return nil
}

func (b *bench) cpuRound(ctx context.Context, members, round int) (r cpuRound, err error) {
	n := b.notifications / members * members
	if r.handed, err = b.handOver(ctx, n, members, round); err != nil {
		return r, err
	}
	if r.log, err = b.bareLog(ctx, n/members); err != nil {
		return r, err
	}
	if r.delivery, err = b.sendHandedOver(ctx, n); err != nil {
		return r, err
	}
	if r.bare, err = b.sendBare(ctx, n); err != nil {
		return r, err
	}
	for _, d := range []*time.Duration{&r.handed, &r.log, &r.delivery.sender, &r.delivery.redis, &r.bare.sender} {
		*d /= time.Duration(n)
	}
	return r, nil
}

func (b *bench) reportCPU(to string, all []cpuRound) {
	delivery := of(all, func(r cpuRound) time.Duration { return r.delivery.sender })
	bare := of(all, func(r cpuRound) time.Duration { return r.bare.sender })
	ratio := of(all, func(r cpuRound) float64 { return by(r.delivery.sender, r.bare.sender) })
	b.table.add(row{"CPU of the sender a notification, " + to, us(delivery), us(bare) + " (bare client)", times(ratio), "1.6"})

	rate := of(all, func(r cpuRound) float64 { return by(r.bare.took, r.delivery.took) })
	b.table.add(row{"notifications a second, " + to, "", "(bare client)", times(rate), "0.6"})

	handed := of(all, func(r cpuRound) time.Duration { return r.handed })
	sending := of(all, func(r cpuRound) time.Duration { return r.delivery.redis })
	log := of(all, func(r cpuRound) time.Duration { return r.log })
	b.table.add(row{
		"CPU of Redis a notification, to hand over + to send, " + to,
		fmt.Sprintf("%s (%s + %s)", us(handed+sending), us(handed), us(sending)), us(log) + " (bare log)", "", "15 µs",
	})
}

// handOver hands events over, and returns the CPU of Redis for it.
func (b *bench) handOver(ctx context.Context, n, members, round int) (time.Duration, error) {
	decisions, err := b.decide(ctx, cpuUsers)
	if err != nil {
		return 0, err
	}
	return b.redisCPUOf(ctx, func() error {
		return inParallel(n/members, func(e int) error {
			from := e * members % cpuUsers
			return b.push.Notifier.Notify(ctx, message(round*n+e), strconv.Itoa(members), decisions[from:from+members])
		})
	})
}

// bareLog does what a log in Redis cannot do without, for as many entries as the
// logs have: it adds them one by one, reads them page by page and trims the log.
// It returns the CPU of Redis for it.
func (b *bench) bareLog(ctx context.Context, events int) (time.Duration, error) {
	_, entries, err := b.counts(ctx)
	if err != nil {
		return 0, err
	}
	data, err := b.entry(ctx)
	if err != nil {
		return 0, err
	}
	each := int(entries) / events // logs that an event is added to
	name := func(n int) string { return fmt.Sprintf("bare:%d", n) }
	return b.redisCPUOf(ctx, func() error {
		err := inParallel(events, func(e int) error {
			_, err := b.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i := range each {
					p.XAdd(ctx, &redis.XAddArgs{Stream: name((e + i) % config().Delivery.Shards), Values: []any{stored.LogData, data}})
				}
				return nil
			})
			return err
		})
		if err != nil {
			return err
		}
		return inParallel(config().Delivery.Shards, func(n int) error { return b.readLog(ctx, name(n)) })
	})
}

// readLog reads a stream, and trims what was read.
func (b *bench) readLog(ctx context.Context, name string) error {
	const page = 32
	for after := "0"; ; {
		read, err := b.Client.XRangeN(ctx, name, "("+after, "+", page).Result()
		if err != nil || len(read) == 0 {
			return err
		}
		after = read[len(read)-1].ID
		if err := b.Client.XTrimMinID(ctx, name, after).Err(); err != nil {
			return err
		}
	}
}

// entry is one of those that were handed over.
func (b *bench) entry(ctx context.Context) (any, error) {
	for n := range config().Delivery.Shards {
		log, err := b.Client.XRangeN(ctx, stored.Keys{}.ShardLog(n), "-", "+", 1).Result()
		if err != nil {
			return nil, err
		}
		if len(log) > 0 {
			return log[0].Values[stored.LogData], nil
		}
	}
	return nil, fmt.Errorf("the logs have no entry")
}

// redisCPUOf returns the CPU of Redis for something.
func (b *bench) redisCPUOf(ctx context.Context, do func() error) (time.Duration, error) {
	c, err := b.redisCost(ctx, do)
	return c.cpu, err
}

// sendHandedOver has a host send what was handed over.
func (b *bench) sendHandedOver(ctx context.Context, n int) (s sent, err error) {
	return b.send(ctx, n, func(host *servers.Process) error {
		if _, err := ask(ctx, host, http.MethodPost, "/run", ""); err != nil {
			return err
		}
		return b.gateway.wait(ctx, patience)
	})
}

// sendBare has a host post the body that came last.
func (b *bench) sendBare(ctx context.Context, n int) (sent, error) {
	body := string(b.gateway.lastBody())
	query := url.Values{"n": {strconv.Itoa(n)}, "url": {b.gateway.url()}}
	return b.send(ctx, n, func(host *servers.Process) error {
		_, err := ask(ctx, host, http.MethodPost, "/bare?"+query.Encode(), body)
		return err
	})
}

// send starts a host and returns what it took that and Redis to send.
func (b *bench) send(ctx context.Context, n int, do func(*servers.Process) error) (s sent, err error) {
	host, err := b.startHost()
	if err != nil {
		return s, err
	}
	defer host.Stop()
	b.gateway.expect(n)
	s.redis, err = b.redisCPUOf(ctx, func() error {
		began, cpu := time.Now(), host.CPU()
		err := do(host)
		s.took, s.sender = time.Since(began), host.CPU()-cpu
		return err
	})
	return s, err
}
