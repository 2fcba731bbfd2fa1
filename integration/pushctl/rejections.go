package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module/delivery"
)

func rejectionsListCommand() command {
	return command{
		name:    "rejections list",
		summary: "shows the gateways that reject pushkeys whose pushers are still there",
		about: "Shows, by gateway, how many pushers were rejected and are to be removed. That takes some seconds for\n" +
			"few, and a day for those of a gateway that rejects so many that it is rather misconfigured than right.",
		setup: forDelivery(func(f *flags, c *deliveryCall) {
			f.StringVar(&c.gateway, "gateway", "", "`HOST` of a push gateway: only this one")
			c.json = f.json()
		}, func(ctx context.Context, c *deliveryCall) error {
			held, _, err := c.selectHeld(ctx, isRejectedOne)
			if err != nil {
				return err
			}
			if all := rejectionsOf(held); *c.json {
				return writeJSON(c.out, all)
			} else {
				return writeRejections(c.out, all, c.now())
			}
		}),
	}
}

func isRejectedOne(h heldPusher) bool { return h.Rejected }

// shownRejections are the pushers that a gateway has rejected.
type shownRejections struct {
	Gateway string    `json:"gateway"` // empty for pushers that are gone, or disabled
	Pushers int       `json:"pushers"`
	Since   time.Time `json:"since"`   // of the first
	Removed time.Time `json:"removed"` // when the last will be
}

func rejectionsOf(held []heldPusher) []shownRejections {
	byGateway := map[string]shownRejections{}
	for _, h := range held {
		r := byGateway[h.gateway]
		if r.Gateway = h.gateway; r.Pushers == 0 || h.Since.Before(r.Since) {
			r.Since = h.Since
		}
		if r.Pushers++; h.Due.After(r.Removed) {
			r.Removed = h.Due
		}
		byGateway[h.gateway] = r
	}
	all := []shownRejections{}
	for _, gateway := range slices.Sorted(maps.Keys(byGateway)) {
		all = append(all, byGateway[gateway])
	}
	return all
}

func writeRejections(w io.Writer, all []shownRejections, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No pusher that was rejected is to be removed.")
		return err
	}
	var rows [][]string
	for _, r := range all {
		rows = append(rows, []string{
			printable(cmp.Or(r.Gateway, "-")), strconv.Itoa(r.Pushers), now.Sub(r.Since).Round(time.Second).String(),
			max(0, r.Removed.Sub(now)).Round(time.Second).String(),
		})
	}
	return writeTable(w, []string{"GATEWAY", "REJECTED PUSHERS", "FOR", "ALL REMOVED IN"}, rows)
}

func rejectionsConfirmCommand() command {
	return rejectionsCommand("confirm", "removes the pushers at once that a gateway has rejected", delivery.Confirm,
		"Has the hosts remove the pushers that were rejected, at once: their pushkeys are not valid. One that was\n"+
			"set anew since stays.")
}

func rejectionsReleaseCommand() command {
	return rejectionsCommand("release", "has the pushers sent to again that a gateway has rejected", delivery.Release,
		"Has the hosts forget that pushers were rejected, and send them what comes from now on: the gateway was\n"+
			"misconfigured. What was dropped meanwhile is lost.")
}

func rejectionsCommand(name, summary string, action delivery.Action, about string) command {
	return command{
		name: "rejections " + name, summary: summary, about: about + " Without -gateway it is for those of all gateways.",
		setup: forDelivery(addGateway, func(ctx context.Context, c *deliveryCall) error {
			return c.instruct(ctx, name, delivery.Instruction{Action: action}, isRejectedOne)
		}),
	}
}
