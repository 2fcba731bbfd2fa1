package main

import (
	"cmp"
	"context"
	"errors"
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
		flags: (*flags).addJSON,
		run:   (*call).showGateways,
	}
}

func (c *call) showGateways(ctx context.Context) error {
	all, err := c.readGateways(ctx)
	if err != nil {
		return err
	}
	return c.result(all, func(w io.Writer) error { return writeGateways(w, all, c.now()) }, false)
}

// shownGateway is a push gateway for an app.
type shownGateway struct {
	Gateway   string    `json:"gateway"`
	App       string    `json:"app_id,omitempty"` // empty: a held gateway without backlogs
	HeldSince time.Time `json:"held_since,omitzero"`
	Pushers   int       `json:"pushers"`
	Due       int       `json:"due"`
	Late      float64   `json:"late_seconds"` // of the pusher that has been due the longest
	Failing   int       `json:"failing"`
	Since     time.Time `json:"failing_since,omitzero"`
	Last      string    `json:"last,omitempty"` // the status, or why there was no answer
}

// gate has the totals of all backlogs for a gateway and an app, over all shards.
type gate struct {
	backlogs, due int
	late          time.Duration
	failing       int       // number of failing pushers
	since         time.Time // time of the first failure
	last          string    // answer
	isTried       bool      // whether a host lately tried the gateway without success
	heldSince     time.Time
}

// isClosed reports whether hosts have closed the gate, or an operator holds it. Its due backlogs
// wait for the gateway, not for a host.
func (g *gate) isClosed() bool { return g.isTried || !g.heldSince.IsZero() }

// The time after a failure during which hosts count as trying the gateway. They try a closed gateway every 5 s, and a
// gateway whose address is not public every hour.
const (
	triedFor   = 30 * time.Second
	blockedFor = 70 * time.Minute
)

// readGates returns the gates of all shards by name. It reads no backlogs.
func (c *call) readGates(ctx context.Context, shards int) (map[string]*gate, error) {
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
	err = parallel(ctx, allShards(shards), func(ctx context.Context, shard int) error {
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

// fails counts a failing pusher.
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

func (c *call) readGateways(ctx context.Context) ([]shownGateway, error) {
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
	var rows [][]string
	for _, g := range all {
		rows = append(rows, []string{
			printable(g.Gateway), printable(cmp.Or(g.App, "-")), ago(g.HeldSince, now), strconv.Itoa(g.Pushers), strconv.Itoa(g.Due), duration(g.Late, time.Second),
			strconv.Itoa(g.Failing), ago(g.Since, now), printable(cmp.Or(g.Last, "-")),
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
		flags: (*flags).addYes,
		run:   (*call).holdGateway,
	}
}

func (c *call) holdGateway(ctx context.Context) error {
	if _, err := c.shardCount(ctx); err != nil {
		return err
	}
	g, err := readGatewayName(c.args[0])
	if err != nil {
		return err
	}
	pushers, err := c.pushersAt(ctx, g)
	if err != nil {
		return err
	}
	return c.changeGateway(g, pushers, "hold", func(name string) error { return c.queue.Hold(ctx, name) })
}

func gatewaysOpenCommand() command {
	return command{
		name: "gateways open", args: "HOST",
		summary: "starts sending to a held push gateway again",
		about: "Lets all hosts send to a held push gateway again, within two seconds. Waiting notifications follow\n" +
			"within half a minute. HOST is " + gatewayForms + ". Without -yes it shows\n" +
			"what it would do. Exit status 1: the gateway is not held.",
		flags: (*flags).addYes,
		run:   (*call).openGateway,
	}
}

func (c *call) openGateway(ctx context.Context) error {
	g, err := readGatewayName(c.args[0])
	if err != nil {
		return err
	}
	held, err := c.queue.Held(ctx)
	if err != nil {
		return err
	}
	names := map[string]int{}
	for name := range held {
		if g.matches(name) {
			names[name] = 0
		}
	}
	if len(names) == 0 {
		return notFoundError(fmt.Sprintf("no gateway %s is held", g))
	}
	return c.changeGateway(g, names, "open", func(name string) error {
		_, err := c.queue.OpenGateway(ctx, name)
		return err
	})
}

// changeGateway calls do for the only gateway in found, which has the number of pushers of each gateway that g matches.
func (c *call) changeGateway(g gatewayName, found map[string]int, verb string, do func(name string) error) error {
	name, err := g.only(found)
	if err == nil && c.yes {
		err = do(name)
	}
	if err != nil {
		return err
	}
	return c.report("%s %s", verb, printable(name))
}

// errEnough ends a scan early.
var errEnough = errors.New("found enough")

// pushersAt counts the pushers of each gateway that g matches. If g has a scheme, it matches one gateway, and the scan
// stops at the first pusher. Without any pusher, pushersAt returns a [notFoundError].
func (c *call) pushersAt(ctx context.Context, g gatewayName) (map[string]int, error) {
	var mu sync.Mutex
	pushers := map[string]int{}
	err := c.newScanner("read").scan(ctx, func(ctx context.Context, _ *redis.Client, keys []string) error {
		found := c.gatewaysOf(ctx, keys)
		mu.Lock()
		defer mu.Unlock()
		for _, gateway := range found {
			if g.matches(gateway) {
				pushers[gateway]++
			}
		}
		if g.hasScheme && len(pushers) > 0 {
			return errEnough
		}
		return nil
	})
	switch {
	case len(pushers) > 0 && (err == nil || errors.Is(err, errEnough)):
		return pushers, nil
	case err != nil:
		return nil, err
	}
	return nil, notFoundError(fmt.Sprintf("no pusher uses the gateway %s", g))
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
