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

// heldRecord is what the formula of the operator's page says that a pusher in
// trouble takes, beside its notifications.
const heldRecord = 210

// hostHeap is what a host has in use.
func hostHeap(ctx context.Context, host *servers.Process) (int64, error) {
	text, err := ask(ctx, host, http.MethodGet, "/heap", "")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// measureTrouble has a gateway fail, with a notification for each of many pushers,
// and measures what they take in Redis and at the host.
func (b *bench) measureTrouble(ctx context.Context) error {
	if err := b.setPushers(ctx, b.trouble); err != nil {
		return err
	}
	host, err := b.runHost(ctx)
	if err != nil {
		return err
	}
	decisions, err := b.decide(ctx, b.trouble)
	if err != nil {
		return err
	}
	heapBefore, err := hostHeap(ctx, host)
	if err != nil {
		return err
	}
	b.gateway.fail(true)
	took, err := b.redisCost(ctx, func() error {
		if err := b.push.Notifier.Notify(ctx, message(0), "", decisions); err != nil {
			return err
		}
		return b.waitHeld(ctx, b.trouble)
	})
	if err != nil {
		return err
	}
	heap, err := hostHeap(ctx, host)
	if err != nil {
		return err
	}
	n, bytes := int64(b.trouble), int64(len(message(0).JSON))
	const goal = "130 MB for 100,000"
	b.table.add(row{
		fmt.Sprintf("Redis for %d pushers in trouble, with a notification of %d bytes", n, bytes), megabytes(took.memory),
		megabytes(n*(heldRecord+bytes)) + " (formula)", times(by(took.memory, n*(heldRecord+bytes))), goal,
	})
	b.table.add(row{"heap of their host", megabytes(heap - heapBefore), "", "", goal})
	return nil
}

// waitHeld waits until as many pushers have a record, and the logs are empty.
func (b *bench) waitHeld(ctx context.Context, n int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		held, entries, err := b.counts(ctx)
		if err != nil {
			return err
		}
		if held == int64(n) && entries == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d pushers have a record, and the logs %d entries", held, n, entries)
		}
	}
}

// counts returns how many pushers have a record, and how many entries the logs
// have.
func (b *bench) counts(ctx context.Context) (held, entries int64, err error) {
	var hashes, logs []*redis.IntCmd
	_, err = b.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n := range config().Delivery.Shards {
			hashes = append(hashes, p.HLen(ctx, stored.Keys{}.ShardHeld(n)))
			logs = append(logs, p.XLen(ctx, stored.Keys{}.ShardLog(n)))
		}
		return nil
	})
	for i := range hashes {
		held, entries = held+hashes[i].Val(), entries+logs[i].Val()
	}
	return held, entries, err
}

// measureKnown has a host decide for many users and send to some of them, and
// measures what is left of that in Redis and at the host.
func (b *bench) measureKnown(ctx context.Context) error {
	served := min(b.known, b.held)
	if err := b.setPushers(ctx, served); err != nil {
		return err
	}
	host, err := b.runHost(ctx)
	if err != nil {
		return err
	}
	b.gateway.expect(served)
	decisions, err := b.decide(ctx, served)
	if err != nil {
		return err
	}
	if err := b.push.Notifier.Notify(ctx, message(0), "", decisions); err != nil {
		return err
	}
	if err := b.gateway.wait(ctx, patience); err != nil {
		return err
	}
	if err := b.waitHeld(ctx, 0); err != nil {
		return err
	}
	query := url.Values{"users": {strconv.Itoa(b.known)}}
	if _, err := ask(ctx, host, http.MethodPost, "/decide?"+query.Encode(), ""); err != nil {
		return err
	}
	heap, err := hostHeap(ctx, host)
	if err != nil {
		return err
	}
	held, entries, err := b.counts(ctx)
	if err != nil {
		return err
	}
	b.table.add(row{fmt.Sprintf("records and entries in Redis after %d pushers were served", served), strconv.FormatInt(held+entries, 10), "", "", "0"})
	b.table.add(row{fmt.Sprintf("heap of a host that knows %d users", b.known), megabytes(heap), "", "", "150 MB for 1,000,000"})
	return nil
}
