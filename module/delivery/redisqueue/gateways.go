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
		if g, found := stored.ReadGateway(all[i+1]); found {
			shared := module.SharedGateway{State: module.GatewayState(g.State), Since: time.UnixMilli(g.Since), Status: g.Status}
			if g.Until > 0 {
				shared.Until = time.UnixMilli(g.Until)
			}
			known[all[i]] = shared
		}
	}
	return known, nil
}
