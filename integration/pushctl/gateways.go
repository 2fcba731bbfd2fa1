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
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/stored"
)

func gatewaysCommand() command {
	return command{
		name:    "gateways",
		summary: "shows the push gateways that are away, or whose pushers are in trouble",
		about: "Shows the push gateways that hosts have closed since they fail, that have told to wait or that an\n" +
			"operator holds, since when, and the status of the last answer; and those whose pushers are in trouble,\n" +
			"how many these are, how many of them were rejected, and how many notifications wait. What is under way\n" +
			"and how much is delivered is in the metrics of the hosts.",
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

// shownGateway is a push gateway.
type shownGateway struct {
	Gateway  string              `json:"gateway"` // empty for pushers that are gone, or disabled
	State    module.GatewayState `json:"state"`
	Since    time.Time           `json:"since,omitzero"`
	Until    time.Time           `json:"until,omitzero"` // when it has told to wait
	Status   int                 `json:"last_status"`    // of the answer before it was closed; 0 for none
	Pushers  int                 `json:"pushers_in_trouble"`
	Rejected int                 `json:"rejected"`
	Waiting  int                 `json:"notifications"`
}

func (c *deliveryCall) readGateways(ctx context.Context) ([]shownGateway, error) {
	held, _, err := c.selectHeld(ctx, func(heldPusher) bool { return true })
	if err != nil {
		return nil, err
	}
	known, err := c.queue.Gateways(ctx, c.now())
	if err != nil {
		return nil, err
	}
	gateways := map[string]shownGateway{}
	for name, g := range known {
		gateways[name] = shownGateway{Gateway: name, State: g.State, Since: g.Since, Until: g.Until, Status: g.Status}
	}
	for _, h := range held {
		g := gateways[h.gateway]
		g.Gateway, g.State = h.gateway, cmp.Or(g.State, module.GatewayOpen)
		g.Pushers++
		if h.Rejected {
			g.Rejected++
		}
		g.Waiting += len(h.Kept)
		gateways[h.gateway] = g
	}
	all := []shownGateway{}
	for _, name := range slices.Sorted(maps.Keys(gateways)) {
		all = append(all, gateways[name])
	}
	return all, nil
}

func writeGateways(w io.Writer, all []shownGateway, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "All gateways are open, and no pusher is in trouble.")
		return err
	}
	var rows [][]string
	for _, g := range all {
		since, until, status := "-", "-", "-"
		if !g.Since.IsZero() {
			since = now.Sub(g.Since).Round(time.Second).String()
		}
		if !g.Until.IsZero() {
			until = max(0, g.Until.Sub(now)).Round(time.Second).String()
		}
		if g.Status > 0 {
			status = fmt.Sprint(g.Status)
		}
		rows = append(rows, []string{
			printable(cmp.Or(g.Gateway, "-")), printable(string(g.State)), since, until, status,
			strconv.Itoa(g.Pushers), strconv.Itoa(g.Rejected), strconv.Itoa(g.Waiting),
		})
	}
	head := []string{"GATEWAY", "STATE", "FOR", "UNTIL IN", "LAST STATUS", "PUSHERS IN TROUBLE", "REJECTED", "NOTIFICATIONS"}
	return writeTable(w, head, rows)
}

func gatewaysHoldCommand() command {
	return command{
		name: "gateways hold", args: "HOST",
		summary: "has nothing sent to a push gateway, until it is opened",
		about: "Has all hosts send nothing to a push gateway, within a second or two, until it is opened. Of each of\n" +
			"its pushers the newest notifications are kept, for a day. HOST is host, host:port or\n" +
			"scheme://host:port; without a scheme it is https.",
		setup: forDelivery(addDryRun, func(ctx context.Context, c *deliveryCall) error {
			name, err := gatewayArgument(c.args[0])
			if err != nil {
				return err
			}
			if _, err := c.shardCount(ctx); err != nil {
				return err
			}
			record := stored.GatewayRecord{State: string(module.GatewayHeld), Since: c.now().UnixMilli()}
			return c.changeGateways("hold", []string{name}, func() error {
				return c.client.HSet(ctx, c.keys.DeliveryGateways(), name, record.Text()).Err()
			})
		}),
	}
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
		summary: "has a push gateway sent to again, whoever has closed it",
		about: "Has all hosts send to a push gateway again, within a second or two, with a rate that doubles each\n" +
			"second, though an operator holds it, it has told to wait, or it fails. HOST is as `gateways` shows it,\n" +
			"or without scheme and port.",
		setup: forDelivery(addDryRun, func(ctx context.Context, c *deliveryCall) error {
			if _, err := c.shardCount(ctx); err != nil {
				return err
			}
			known, err := c.queue.Gateways(ctx, c.now())
			if err != nil {
				return err
			}
			var names []string
			for _, name := range slices.Sorted(maps.Keys(known)) {
				if delivery.IsGateway(name, c.args[0]) {
					names = append(names, name)
				}
			}
			if len(names) == 0 {
				return fmt.Errorf("no gateway %s is closed, waits or is held", printable(c.args[0]))
			}
			return c.changeGateways("open", names, func() error {
				return c.client.HDel(ctx, c.keys.DeliveryGateways(), names...).Err()
			})
		}),
	}
}

// changeGateways makes a change to gateways, unless it is only to be told.
func (c *deliveryCall) changeGateways(what string, names []string, change func() error) error {
	begin := "would"
	if !c.dryRun {
		begin = "done:"
		if err := change(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	_, err := fmt.Fprintf(c.out, "%s %s %s\n", begin, what, printable(strings.Join(names, ", ")))
	return err
}
