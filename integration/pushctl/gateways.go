package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

func gatewaysCommand() command {
	return command{
		name:    "gateways",
		summary: "shows push gateways with waiting notifications, and held gateways",
		about: "Shows held gateways, and for each push gateway and app with waiting notifications: the pushers, the\n" +
			"due ones and for how long they are due, the failing ones and since when they fail, and the last\n" +
			"answer. A gateway that fails is closed: its pushers stay due, and hosts try one of them every 5 s.\n" +
			"The hosts' metrics have requests under way and deliveries.",
		setup: forDelivery(func(f *flags, c *deliveryCall) { c.json = f.json() }, func(ctx context.Context, c *deliveryCall) error {
			all, err := c.readGateways(ctx)
			if err != nil {
				return err
			}
			if *c.json {
				return writeJSON(c.out, all)
			}
			return writeGateways(c.out, all, c.now())
		}),
	}
}

// shownGateway is a push gateway for an app.
type shownGateway struct {
	Gateway   string    `json:"gateway"`
	App       string    `json:"app_id,omitempty"` // empty for a held gateway without backlogs
	HeldSince time.Time `json:"held_since,omitzero"`
	Pushers   int       `json:"pushers"`
	Due       int       `json:"due"`
	Late      float64   `json:"late_seconds"` // of the pusher that has been due the longest
	Failing   int       `json:"failing"`
	Since     time.Time `json:"failing_since,omitzero"`
	Last      string    `json:"last,omitempty"` // the status, or why there was no answer
}

// gate is what waits for a gateway and an app in all shards.
type gate struct {
	backlogs, due int
	late          time.Duration
	failing       int       // pushers
	since         time.Time // of the first failure
	last          string    // answer
	isTried       bool      // and failed lately
	heldSince     time.Time
}

// isClosed reports whether backlogs may be due for long although hosts send.
func (g *gate) isClosed() bool { return g.isTried || !g.heldSince.IsZero() }

// How long a failure shows that hosts try a gateway. They try a closed one every 5 s, and
// one whose address is not public every hour.
const (
	triedFor   = 30 * time.Second
	blockedFor = 70 * time.Minute
)

// readGates returns the gates of all shards by name. It reads no backlogs.
func (c *deliveryCall) readGates(ctx context.Context, shards int) (map[string]*gate, error) {
	held, err := c.queue.Held(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	all, now := map[string]*gate{}, c.now()
	of := func(name string) *gate {
		g := all[name]
		if g == nil {
			gateway, _ := delivery.SplitGate(name)
			g = &gate{heldSince: held[gateway]}
			all[name] = g
		}
		return g
	}
	numbers := make([]int, shards)
	for n := range numbers {
		numbers[n] = n
	}
	err = parallel(ctx, numbers, func(ctx context.Context, shard int) error {
		gates, err := c.queue.Gates(ctx, shard, now)
		if err != nil {
			return err
		}
		mu.Lock()
		for _, part := range gates {
			g := of(part.Name)
			g.backlogs += part.Backlogs
			g.due += part.Due
			g.late = max(g.late, now.Sub(part.Earliest))
		}
		mu.Unlock()
		return c.queue.Troubles(ctx, shard, func(t module.Trouble) {
			w := delivery.ReadTrouble(t)
			mu.Lock()
			defer mu.Unlock()
			of(w.Gateway+" "+w.App).fails(w, now)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	return all, nil
}

// fails adds a failing pusher.
func (g *gate) fails(w delivery.Waiting, now time.Time) {
	if w.Since.IsZero() {
		return
	}
	g.failing++
	g.last = lastOf(w)
	if g.since.IsZero() || w.Since.Before(g.since) {
		g.since = w.Since
	}
	most := triedFor
	if w.Class == "blocked" {
		most = blockedFor
	}
	g.isTried = g.isTried || now.Sub(w.Last) <= most
}

func (c *deliveryCall) readGateways(ctx context.Context) ([]shownGateway, error) {
	shards, err := c.shardCount(ctx)
	if err != nil {
		return nil, err
	}
	gates, err := c.readGates(ctx, shards)
	if err != nil {
		return nil, err
	}
	all, shown := []shownGateway{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		g := gates[name]
		if g.backlogs == 0 || name == module.FanOut {
			continue
		}
		gateway, app := delivery.SplitGate(name)
		shown[gateway] = true
		all = append(all, shownGateway{gateway, app, g.heldSince, g.backlogs, g.due, max(0, g.late.Seconds()), g.failing, g.since, g.last})
	}
	held, err := c.queue.Held(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if !shown[name] {
			all = append(all, shownGateway{Gateway: name, HeldSince: held[name]})
		}
	}
	return all, nil
}

func writeGateways(w io.Writer, all []shownGateway, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No notifications wait, and no gateway is held.")
		return err
	}
	since := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return now.Sub(t).Round(time.Second).String()
	}
	var rows [][]string
	for _, g := range all {
		late := time.Duration(g.Late * float64(time.Second)).Round(time.Second).String()
		rows = append(rows, []string{
			printable(g.Gateway), printable(cmp.Or(g.App, "-")), since(g.HeldSince), strconv.Itoa(g.Pushers), strconv.Itoa(g.Due), late,
			strconv.Itoa(g.Failing), since(g.Since), printable(cmp.Or(g.Last, "-")),
		})
	}
	return writeTable(w, []string{"GATEWAY", "APP", "HELD FOR", "PUSHERS", "DUE", "DUE FOR", "FAILING", "FAILING FOR", "LAST"}, rows)
}

func gatewaysHoldCommand() command {
	return command{
		name: "gateways hold", args: "HOST",
		summary: "stops sending to a push gateway",
		about: "Stops all hosts from sending to a push gateway, within two seconds. The command gateways open ends\n" +
			"it. Notifications for its pushers wait for a day. HOST is " + gatewayForms + ".\n" +
			"Without -yes it shows what it would do. Exit status 1: no pusher uses the gateway.",
		setup: forGateway("hold", func(ctx context.Context, c *deliveryCall) (map[string]int, error) {
			if _, err := c.shardCount(ctx); err != nil {
				return nil, err
			}
			pushers, err := c.pushersAt(ctx, c.gateway)
			if err == nil && len(pushers) == 0 {
				err = notFoundError(fmt.Sprintf("no pusher uses the gateway %s", c.gateway))
			}
			return pushers, err
		}, func(ctx context.Context, c *deliveryCall, name string) error { return c.queue.Hold(ctx, name) }),
	}
}

func gatewaysOpenCommand() command {
	return command{
		name: "gateways open", args: "HOST",
		summary: "starts sending to a held push gateway again",
		about: "Lets all hosts send to a held push gateway again, within two seconds. Waiting notifications follow\n" +
			"within half a minute. HOST is " + gatewayForms + ". Without -yes it shows\n" +
			"what it would do. Exit status 1: the gateway is not held.",
		setup: forGateway("open", func(ctx context.Context, c *deliveryCall) (map[string]int, error) {
			held, err := c.queue.Held(ctx)
			names := map[string]int{}
			for name := range held {
				if c.gateway.matches(name) {
					names[name] = 0
				}
			}
			if err == nil && len(names) == 0 {
				err = notFoundError(fmt.Sprintf("no gateway %s is held", c.gateway))
			}
			return names, err
		}, func(ctx context.Context, c *deliveryCall, name string) error {
			_, err := c.queue.OpenGateway(ctx, name)
			return err
		}),
	}
}

// forGateway returns a setup for a command on the gateway HOST. Find returns the matching
// gateways with their pushers.
func forGateway(verb string, find func(context.Context, *deliveryCall) (map[string]int, error), do func(context.Context, *deliveryCall, string) error) func(*flags) runner {
	return forDelivery(addYes, func(ctx context.Context, c *deliveryCall) (err error) {
		if c.gateway, err = readGatewayName(c.args[0]); err != nil {
			return err
		}
		found, err := find(ctx, c)
		if err != nil {
			return err
		}
		name, err := c.gateway.only(found)
		if err != nil {
			return err
		}
		if c.yes {
			if err := do(ctx, c, name); err != nil {
				return err
			}
		}
		return c.report(verb, "%s", printable(name))
	})
}

// pushersAt counts the pushers of each gateway that g matches. For a whole name it stops
// at the first pusher.
func (b *backend) pushersAt(ctx context.Context, g gatewayName) (map[string]int, error) {
	var mu sync.Mutex
	pushers := map[string]int{}
	err := redisclient.EachMaster(ctx, b.client, func(ctx context.Context, node *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := node.Scan(ctx, cursor, b.keys.Pattern(), pageSize).Result()
			if err != nil {
				return fmt.Errorf("read pushers: %w", err)
			}
			found := b.gatewaysOf(ctx, keys)
			mu.Lock()
			for _, gateway := range found {
				if g.matches(gateway) {
					pushers[gateway]++
				}
			}
			isEnough := g.isWhole() && len(pushers) > 0
			mu.Unlock()
			if cursor = next; cursor == 0 || isEnough {
				return nil
			}
		}
	})
	return pushers, err
}

// gatewaysOf returns the gateway of each pusher that is stored in keys.
func (b *backend) gatewaysOf(ctx context.Context, keys []string) (gateways []string) {
	var users []mxid.UserID
	for _, key := range keys {
		if k := b.keys.Parse(key); k.Kind == stored.PushersKey {
			users = append(users, k.User)
		}
	}
	for user, list := range b.pushers.LoadMany(ctx, users) {
		for _, p := range list.Value.All() {
			if gateway, ok := delivery.GatewayOf(user, p); ok {
				gateways = append(gateways, gateway)
			}
		}
	}
	return gateways
}
