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
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

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
			"failing ones among them and since when they fail, the last answer, and the number of notifications.\n" +
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
	Gateway       string    `json:"gateway"`
	App           string    `json:"app_id,omitempty"` // empty for a held gateway without backlogs
	HeldSince     time.Time `json:"held_since,omitzero"`
	Pushers       int       `json:"pushers"`
	Failing       int       `json:"failing"`
	Since         time.Time `json:"failing_since,omitzero"`
	Last          string    `json:"last,omitempty"` // the status, or why there was no answer
	Notifications int       `json:"notifications"`
}

func (c *deliveryCall) readGateways(ctx context.Context) ([]shownGateway, error) {
	backlogs, err := c.selectBacklogs(ctx, "")
	if err != nil {
		return nil, err
	}
	held, err := c.queue.Held(ctx)
	if err != nil {
		return nil, err
	}
	gateways := map[string]shownGateway{}
	for _, b := range backlogs {
		g := gateways[b.Gateway+" "+b.App]
		g.Gateway, g.App, g.HeldSince = b.Gateway, b.App, held[b.Gateway]
		g.Pushers++
		g.Notifications += b.Notifications
		if !b.Since.IsZero() {
			g.Failing++
			g.Last = lastOf(b.Waiting)
			if g.Since.IsZero() || b.Since.Before(g.Since) {
				g.Since = b.Since
			}
		}
		gateways[b.Gateway+" "+b.App] = g
	}
	for name, since := range held {
		if !slices.ContainsFunc(backlogs, func(b backlog) bool { return b.Gateway == name }) {
			gateways[name] = shownGateway{Gateway: name, HeldSince: since}
		}
	}
	all := []shownGateway{}
	for _, name := range slices.Sorted(maps.Keys(gateways)) {
		all = append(all, gateways[name])
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
		rows = append(rows, []string{
			printable(g.Gateway), printable(cmp.Or(g.App, "-")), since(g.HeldSince), strconv.Itoa(g.Pushers), strconv.Itoa(g.Failing),
			since(g.Since), printable(cmp.Or(g.Last, "-")), strconv.Itoa(g.Notifications),
		})
	}
	return writeTable(w, []string{"GATEWAY", "APP", "HELD FOR", "PUSHERS", "FAILING", "FAILING FOR", "LAST", "NOTIFICATIONS"}, rows)
}

func gatewaysHoldCommand() command {
	return command{
		name: "gateways hold", args: "HOST",
		summary: "stops sending to a push gateway",
		about: "Stops all hosts from sending to a push gateway, within two seconds. The command gateways open ends it.\n" +
			"Notifications for its pushers wait for a day. HOST is host, host:port or scheme://host:port, by\n" +
			"default https. Without -yes it shows what it would do. It fails if no pusher uses the gateway.",
		setup: forDelivery(addYes, func(ctx context.Context, c *deliveryCall) error {
			name, err := gatewayArgument(c.args[0])
			if err != nil {
				return err
			}
			if _, err := c.shardCount(ctx); err != nil {
				return err
			}
			used, err := c.isUsed(ctx, name)
			if err != nil {
				return err
			}
			if !used {
				return fmt.Errorf("no pusher uses the gateway %s", printable(name))
			}
			if c.yes {
				if err := c.queue.Hold(ctx, name); err != nil {
					return err
				}
			}
			return c.report("hold", "%s", printable(name))
		}),
	}
}

// isUsed reports whether a pusher uses a gateway. It reads pushers until it finds one.
func (b *backend) isUsed(ctx context.Context, name string) (bool, error) {
	var found atomic.Bool
	err := redisclient.EachMaster(ctx, b.client, func(ctx context.Context, node *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := node.Scan(ctx, cursor, b.keys.Pattern(), pageSize).Result()
			if err != nil {
				return fmt.Errorf("read pushers: %w", err)
			}
			var users []mxid.UserID
			for _, key := range keys {
				if k := b.keys.Parse(key); k.Kind == stored.PushersKey {
					users = append(users, k.User)
				}
			}
			for user, list := range b.pushers.LoadMany(ctx, users) {
				for _, p := range list.Value.All() {
					if gateway, ok := delivery.GatewayOf(user, p); ok && gateway == name {
						found.Store(true)
					}
				}
			}
			if cursor = next; cursor == 0 || found.Load() {
				return nil
			}
		}
	})
	return found.Load(), err
}

// gatewayArgument returns the [delivery.GatewayName] of an argument.
func gatewayArgument(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	name, ok := delivery.GatewayName(text)
	if !ok || strings.Count(text, "/") > 2 {
		return "", errors.New("want host, host:port or scheme://host:port of a gateway")
	}
	return name, nil
}

func gatewaysOpenCommand() command {
	return command{
		name: "gateways open", args: "HOST",
		summary: "starts sending to a held push gateway again",
		about: "Lets all hosts send to a held push gateway again, within two seconds. Waiting notifications follow\n" +
			"within half a minute. HOST is as gateways shows it, or without scheme and port. Without -yes it shows\n" +
			"what it would do.",
		setup: forDelivery(addYes, func(ctx context.Context, c *deliveryCall) error {
			held, err := c.queue.Held(ctx)
			if err != nil {
				return err
			}
			var names []string
			for _, name := range slices.Sorted(maps.Keys(held)) {
				if isGateway(name, c.args[0]) {
					names = append(names, name)
				}
			}
			if len(names) == 0 {
				return fmt.Errorf("no gateway %s is held", printable(c.args[0]))
			}
			for _, name := range names {
				if c.yes {
					if _, err := c.queue.OpenGateway(ctx, name); err != nil {
						return err
					}
				}
			}
			return c.report("open", "%s", printable(strings.Join(names, ", ")))
		}),
	}
}
