package redisqueue

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/stored"
)

// mostGateways is how many gateways hosts may tell each other not to be open:
// users choose them, and all hosts read all of them every second.
const mostGateways = 1000

// ShareGateways tells how gateways have changed; see [module.DeliveryQueue]. It
// knows of 1,000 gateways, and of those that operators hold.
func (q *Queue) ShareGateways(ctx context.Context, changes map[string]module.GatewayChange, lasts time.Duration) (map[string]module.SharedGateway, error) {
	args := []any{lasts.Milliseconds(), mostGateways}
	for name, c := range changes {
		args = append(args, name, string(c.State), c.Wait.Milliseconds(), c.Status, c.Retry)
	}
	call := rediscommit.Call{Script: share, Keys: []string{q.keys.DeliveryGateways()}, Args: args}
	if err := q.writer.Do(ctx, call.Write())[0]; err != nil {
		return nil, err
	}
	all, err := call.Reply.StringSlice()
	if err != nil {
		return nil, unavailable("share gateways", err)
	}
	known := make(map[string]module.SharedGateway, len(all)/2)
	for i := 0; i+1 < len(all); i += 2 {
		if r, found := stored.ReadGateway(all[i+1]); found {
			known[all[i]] = sharedGateway(r)
		}
	}
	return known, nil
}

// Gateways returns what [Queue.ShareGateways] does, as of a time by the clock of
// the queue, and changes nothing. It is for operators.
func (q *Queue) Gateways(ctx context.Context, now time.Time) (map[string]module.SharedGateway, error) {
	var texts map[string]string
	err := q.do(ctx, "read gateways", func(ctx context.Context) (err error) {
		texts, err = q.client.HGetAll(ctx, q.keys.DeliveryGateways()).Result()
		return err
	})
	known := make(map[string]module.SharedGateway, len(texts))
	for name, text := range texts {
		if r, found := stored.ReadGateway(text); found && (r.Expires == 0 || r.Expires > now.UnixMilli()) {
			known[name] = sharedGateway(r)
		}
	}
	return known, err
}

func sharedGateway(r stored.GatewayRecord) module.SharedGateway {
	g := module.SharedGateway{State: module.GatewayState(r.State), Since: time.UnixMilli(r.Since), Status: r.Status}
	if r.Until > 0 {
		g.Until = time.UnixMilli(r.Until)
	}
	return g
}
