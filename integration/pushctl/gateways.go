package main

import (
	"cmp"
	"context"
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
		summary: "shows the push gateways for which something waits, or that an operator holds",
		about: "Shows for each push gateway and app how many pushers have something that waits, how many of these fail\n" +
			"and since when, how the last try ended, and how many notifications wait; and the gateways that are held.\n" +
			"What is under way and how much is delivered is in the metrics of the hosts.",
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

// shownGateway is a push gateway, for an app.
type shownGateway struct {
	Gateway       string    `json:"gateway"`
	App           string    `json:"app_id,omitempty"` // empty for one that is only held
	HeldSince     time.Time `json:"held_since,omitzero"`
	Pushers       int       `json:"pushers"`
	Failing       int       `json:"failing"`
	Since         time.Time `json:"failing_since,omitzero"`
	Last          string    `json:"last,omitempty"` // a status, or why there was no answer
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
		_, err := fmt.Fprintln(w, "Nothing waits, and no gateway is held.")
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
		summary: "has nothing sent to a push gateway, until it is opened",
		about: "Has all hosts send nothing to a push gateway, within a second or two, until it is opened. Its pushers\n" +
			"keep their notifications, for a day. HOST is host, host:port or scheme://host:port; without a scheme it\n" +
			"is https. Without -yes it only tells what it would do. It fails if no pusher names the gateway.",
		setup: forDelivery(addYes, func(ctx context.Context, c *deliveryCall) error {
			name, err := gatewayArgument(c.args[0])
			if err != nil {
				return err
			}
			if _, err := c.shardCount(ctx); err != nil {
				return err
			}
			named, err := c.isNamed(ctx, name)
			if err != nil {
				return err
			}
			if !named {
				return fmt.Errorf("no pusher names the gateway %s", printable(name))
			}
			if c.yes {
				if err := c.queue.Hold(ctx, name); err != nil {
					return err
				}
			}
			return c.tell("hold", "%s", printable(name))
		}),
	}
}

// isNamed reports whether a pusher names a gateway. It reads pushers until it finds
// one.
func (b *backend) isNamed(ctx context.Context, name string) (bool, error) {
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

// gatewayArgument returns the name of a gateway, as [delivery.GatewayName].
func gatewayArgument(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	name, ok := delivery.GatewayName(text)
	if !ok || strings.Count(text, "/") > 2 {
		return "", fmt.Errorf("want host, host:port or scheme://host:port of a gateway")
	}
	return name, nil
}

func gatewaysOpenCommand() command {
	return command{
		name: "gateways open", args: "HOST",
		summary: "has a push gateway sent to again that an operator holds",
		about: "Has all hosts send to a push gateway again, within a second or two. What waits for it comes within half\n" +
			"a minute. HOST is as `gateways` shows it, or without scheme and port. Without -yes it only tells what it\n" +
			"would do.",
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
			return c.tell("open", "%s", printable(strings.Join(names, ", ")))
		}),
	}
}
