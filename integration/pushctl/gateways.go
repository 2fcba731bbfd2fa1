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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var gatewaysCommand = command{
	name:    "gateways",
	summary: "shows push gateways with waiting notifications",
	about: "Shows, for each push gateway and app with waiting notifications: the users, the due\n" +
		"ones, for how long the oldest notification has waited, the users whose last request hangs while others\n" +
		"are answered, since when requests fail, and the last answer. Of 1,000 users or more, they are of a sample. A gateway that fails is closed: its\n" +
		"users stay due, and hosts try one of them every 5 s. Exit status 2: a part cannot be read; the rest\n" +
		"is shown.",
	flags: (*flags).addJSON,
	run:   (*call).showGateways,
}

// shownGateway is a push gateway for an app.
type shownGateway struct {
	Gateway string    `json:"gateway"`
	App     string    `json:"app_id,omitempty"`
	Users   int       `json:"users"`
	Due     int       `json:"due"`
	Oldest  float64   `json:"oldest_seconds"` // for how long the oldest notification has waited
	Hanging int       `json:"hanging"`
	Since   time.Time `json:"failing_since,omitzero"`
	Last    string    `json:"last,omitempty"` // the status, or why there was no answer
}

// gate has what waits for a gateway and an app. Its times are of a sample of the users.
type gate struct {
	users, due, hanging int
	late, oldest        time.Duration
	since               time.Time // time of the first failure
	last                string    // answer
	isClosed            bool      // a host lately tried the gateway without success: due users wait for it, not for a host
}

// The time after a failure during which hosts count as trying the gateway. They try a closed gateway every 5 s, and a
// gateway whose address is not public every hour.
const (
	triedFor   = 30 * time.Second
	blockedFor = 70 * time.Minute
)

// readGates returns the gates of the index by name. Parts that cannot be read are [gaps].
func (c *call) readGates(ctx context.Context) map[string]*gate {
	gates := map[string]*gate{}
	found, err := c.queue.Gates(ctx)
	c.allowGaps()
	_ = c.skipAt("the queue", "some masters", "", err)
	for name, of := range found {
		g := &gate{users: of.Users, hanging: of.Failing}
		gates[name] = g
		users, due := map[mxid.UserID]bool{}, map[mxid.UserID]bool{}
		for _, p := range of.Sample {
			if users[p.User] = true; g.add(p) {
				due[p.User] = true
			}
		}
		g.due = len(due) * g.users / max(1, len(users))
	}
	return gates
}

// readGateNames reads the names of the gates in the index. An index with a key of another type has no names; the scan
// reports the key.
func (e *examiner) readGateNames(ctx context.Context) error {
	byShard, err := e.queue.Index.GateNames(ctx)
	e.gateNames = map[string]string{}
	for _, name := range slices.Concat(byShard...) {
		e.gateNames[stored.GateDigest(name)] = name
	}
	if redisclient.IsWrongType(err) {
		return nil
	}
	return err
}

// add adds what waits for a pusher.
func (g *gate) add(p redisqueue.Place) (isDue bool) {
	late := p.Now.Sub(time.UnixMicro(p.Until))
	g.late, isDue = max(g.late, late), late >= 0
	if !p.Oldest.IsZero() {
		g.oldest = max(g.oldest, p.Now.Sub(p.Oldest))
	}
	w := delivery.ReadTrouble(module.Trouble{Generation: p.Generation, Text: p.Trouble})
	if w.Since.IsZero() {
		return isDue
	}
	g.last = lastOf(w)
	if g.since.IsZero() || w.Since.Before(g.since) {
		g.since = w.Since
	}
	most := triedFor
	if w.Class == "blocked" {
		most = blockedFor
	}
	g.isClosed = g.isClosed || p.Now.Sub(w.Last) <= most
	return isDue
}

func (c *call) showGateways(ctx context.Context) error {
	if err := c.openQueue(ctx); err != nil {
		return err
	}
	gates := c.readGates(ctx)
	all := []shownGateway{}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		g := gates[name]
		if g.users > 0 {
			gateway, app := delivery.SplitGate(name)
			all = append(all, shownGateway{gateway, app, g.users, g.due, g.oldest.Seconds(), g.hanging, g.since, g.last})
		}
	}
	return c.result(all, func(w io.Writer) error { return writeGateways(w, all, c.now()) }, false)
}

func writeGateways(w io.Writer, all []shownGateway, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No notifications wait.")
		return err
	}
	var rows [][]string
	for _, g := range all {
		rows = append(rows, []string{
			printable(g.Gateway), printable(cmp.Or(g.App, "-")), strconv.Itoa(g.Users), strconv.Itoa(g.Due), duration(g.Oldest, time.Second),
			strconv.Itoa(g.Hanging), ago(g.Since, now), printable(cmp.Or(g.Last, "-")),
		})
	}
	return writeTable(w, []string{"GATEWAY", "APP", "USERS", "DUE", "WAITING FOR", "HANGING", "FAILING FOR", "LAST"}, rows)
}

// errFound ends a scan early.
var errFound = errors.New("found")

// checkGateway returns a [notFoundError] if no pusher is at a gateway that -gateway names.
func (c *call) checkGateway(ctx context.Context) error {
	err := c.newScanner("read").scan(ctx, func(ctx context.Context, _ *redis.Client, keys []string) error {
		var users []mxid.UserID
		for _, key := range keys {
			if k := c.keys.Parse(key); k.Kind == stored.PushersKey {
				users = append(users, k.User)
			}
		}
		for user, list := range c.pushers.LoadMany(ctx, users) {
			if c.isAtGateway(user, list.Value) {
				return errFound
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return nil
	case err != nil:
		return err
	}
	return notFoundError(fmt.Sprintf("no pusher uses the gateway %s", c.gateway))
}

// isAtGateway reports whether one of a user's pushers is at a gateway that -gateway names.
func (c *call) isAtGateway(user mxid.UserID, list pusher.List) bool {
	return slices.ContainsFunc(list.All(), func(p pusher.Pusher) bool {
		gateway, ok := delivery.GatewayOf(user, p)
		return ok && c.gateway.matches(gateway)
	})
}
