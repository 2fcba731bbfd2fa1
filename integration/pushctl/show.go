package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

var showCommand = command{
	name: "show", args: "USER",
	summary: "shows a user's push rules and pushers",
	about: "Shows a user's stored push rules, pushers and unread counts with their keys and problems. A digest\n" +
		"names each pusher in all commands and in the hosts' log: pushkeys are credentials. Of a pusher's data it shows the host of the URL. Exit\n" +
		"status 1: nothing is stored for the user.",
	flags: func(f *flags) {
		f.addDefaultRules()
		f.addJSON()
	},
	run: (*call).show,
}

type shownUser struct {
	User     mxid.UserID     `json:"user"`
	Node     string          `json:"node"`
	Rules    shownRules      `json:"push_rules"`
	Pushers  shownPushers    `json:"pushers"`
	Unread   unreadList      `json:"unread_counts"`
	Problems []listedProblem `json:"problems"`
}

// shownKeyed has the common fields of rules and pushers.
type shownKeyed struct {
	Key     string `json:"key"`
	Bytes   int    `json:"bytes"` // 0 without a stored value
	Version int64  `json:"version,omitempty"`
	Changes int64  `json:"changes,omitempty"`
	NotRead bool   `json:"not_read,omitempty"` // its master did not reply
}

type shownRules struct {
	shownKeyed
	Rules []shownRule `json:"rules"`
}

type shownRule struct {
	Kind       pushrule.Kind   `json:"kind"`
	Order      int             `json:"order"`
	ID         string          `json:"rule_id"`
	Default    bool            `json:"default"`
	Enabled    bool            `json:"enabled"`
	Actions    json.RawMessage `json:"actions"`
	Conditions json.RawMessage `json:"conditions,omitempty"`
	Pattern    *string         `json:"pattern,omitempty"`

	conditions []pushrule.Condition
}

type shownPushers struct {
	shownKeyed
	Pushers []shownPusher `json:"pushers"`
}

// namedPusher is how all commands name a pusher, without its pushkey.
type namedPusher struct {
	Pusher     string `json:"pusher"` // see [delivery.PusherID]
	AppID      string `json:"app_id,omitempty"`
	Device     string `json:"device_id,omitempty"`
	DeviceName string `json:"device_display_name,omitempty"`
}

func newNamedPusher(user mxid.UserID, p pusher.Pusher) namedPusher {
	return namedPusher{delivery.PusherID(user, p.Key), p.AppID, p.Device, p.DeviceDisplayName}
}

// device returns the id and the name of the device.
func (n namedPusher) device() string {
	if n.Device+n.DeviceName == "" {
		return "-"
	}
	return printable(strings.TrimSpace(n.Device + " " + strconv.Quote(n.DeviceName)))
}

// cells are the first columns of a table of pushers.
func (n namedPusher) cells() []string {
	return []string{printable(n.Pusher), printable(cmp.Or(n.AppID, "-")), n.device()}
}

var pusherColumns = []string{"PUSHER", "APP", "DEVICE"}

type shownPusher struct {
	namedPusher
	Kind      pusher.Kind `json:"kind"`
	Entry     string      `json:"entry"` // the key of the pushkey's entry in the index
	Host      string      `json:"url_host"`
	DataBytes int         `json:"data_bytes"`
	Claim     int64       `json:"claim"`
	Taken     bool        `json:"taken"`              // by another user: nobody sees this pusher
	Inactive  bool        `json:"inactive,omitempty"` // see [pusher.Pusher.IsInactive]
}

func (c *call) show(ctx context.Context) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	shown, err := c.shown(ctx, user)
	if err != nil {
		return err
	}
	if shown.Rules.Bytes == 0 && shown.Pushers.Bytes == 0 && shown.Unread.Bytes == 0 && len(shown.Problems) == 0 && c.incomplete() == nil {
		return c.notFound(user)
	}
	return c.result(shown, func(w io.Writer) error { return shown.write(w, c.noProblems()) }, false)
}

func (c *call) shown(ctx context.Context, user mxid.UserID) (shownUser, error) {
	c.allowGaps()
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	names := []string{c.keys.Rules(user), c.keys.Pushers(user), c.keys.Unread(user)}
	s := shownUser{User: user, Problems: []listedProblem{}}
	node, err := c.nodeOf(ctx, names[0])
	if err != nil {
		return s, err
	}
	s.Node = c.addressOf(node)
	values, err := c.readOfUser(ctx, names...)
	if err != nil {
		return s, err
	}
	s.Rules, s.Unread = c.shownRules(values[0]), readUnread(values[2])
	if s.Pushers, err = c.shownPushers(ctx, values[1]); err != nil {
		return s, err
	}
	u := newUnconfirmed(&examiner{backend: c.backend})
	x, err := u.examine(ctx, node, names)
	if err != nil {
		return s, err
	}
	u.add(x)
	confirmed, err := u.confirm(ctx)
	for _, p := range append(x.problems, confirmed...) {
		s.Problems = append(s.Problems, p.listed())
	}
	return s, err
}

func (c *call) shownRules(v value) shownRules {
	s := shownRules{shownKeyed{Key: v.name, Bytes: len(v.text), NotRead: v.state == isUnread}, []shownRule{}}
	e, err := stored.ReadEvent(v.text)
	if err != nil {
		return s
	}
	s.Version, s.Changes = e.Revision.Version, e.Revision.Changes
	for _, kind := range pushrule.Kinds() {
		for i, r := range e.Rules.List(kind) {
			shown := shownRule{Kind: kind, Order: i + 1, ID: r.ID, Default: r.Default, Enabled: r.Enabled, Actions: pushrule.AppendActions(nil, r.Actions)}
			if kind.HasConditions() {
				shown.conditions = r.Conditions
				shown.Conditions = json.RawMessage(jsonArray(r.Conditions))
			}
			if kind.HasPattern() {
				shown.Pattern = &r.Pattern
			}
			s.Rules = append(s.Rules, shown)
		}
	}
	return s
}

func jsonArray[T ~string](texts []T) string {
	parts := make([]string, len(texts))
	for i, text := range texts {
		parts[i] = string(text)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func (c *call) shownPushers(ctx context.Context, v value) (shownPushers, error) {
	s := shownPushers{shownKeyed{Key: v.name, NotRead: v.state == isUnread}, []shownPusher{}}
	for field, text := range v.fields {
		s.Bytes += len(field) + len(text)
	}
	h := stored.ReadHash(v.fields)
	s.Version, s.Changes = h.Revision.Version, h.Revision.Changes
	entries, err := c.readEntries(ctx, h)
	if err != nil {
		return s, err
	}
	for _, p := range h.Pushers.All() {
		entry := entries[p.Digest()] // an unreadable entry takes nothing
		s.Pushers = append(s.Pushers, shownPusher{
			namedPusher: newNamedPusher(v.User, p), Kind: p.Kind, Entry: c.keys.Pushkey(p.Digest()), Host: urlHost(p.Data), DataBytes: len(p.Data),
			Claim: p.Claim, Taken: !entry.Shows(v.User, p.Claim), Inactive: p.IsInactive(),
		})
	}
	return s, nil
}

// urlHost returns the host of the URL in a pusher's data, or an empty text.
func urlHost(data string) string {
	var parsed struct {
		URL string `json:"url"`
	}
	if json.Unmarshal([]byte(data), &parsed) != nil {
		return ""
	}
	u, err := url.Parse(parsed.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

func (s shownUser) write(w io.Writer, noProblems string) error {
	fmt.Fprintf(w, "%s on %s\n\n", printable(string(s.User)), s.Node)
	s.Rules.write(w)
	s.Pushers.write(w)
	s.Unread.write(w)
	if len(s.Problems) == 0 {
		_, err := fmt.Fprintln(w, noProblems)
		return err
	}
	fmt.Fprintln(w, "Problems:")
	for _, listed := range s.Problems {
		fmt.Fprintf(w, "  %s %s\n", listed.Problem, printable(strings.TrimPrefix(listed.Name+" "+listed.Detail, string(s.User)+" ")))
	}
	return nil
}

func (k shownKeyed) write(w io.Writer, what string) {
	fmt.Fprintf(w, "%s: %s\n  ", what, printable(k.Key))
	switch {
	case k.NotRead:
		fmt.Fprintln(w, "could not be read")
	case k.Bytes == 0:
		fmt.Fprintln(w, "nothing is stored")
	case k.Version == 0:
		fmt.Fprintf(w, "%d bytes, without a version\n", k.Bytes)
	default:
		fmt.Fprintf(w, "%d bytes, version %d (%s), changed %d times\n", k.Bytes, k.Version, timeOf(k.Version), k.Changes)
	}
	fmt.Fprintln(w)
}

func (s shownRules) write(w io.Writer) {
	s.shownKeyed.write(w, "Push rules")
	for _, r := range s.Rules {
		state := "enabled"
		if !r.Enabled {
			state = "disabled"
		}
		if r.Default {
			state += ", default"
		}
		fmt.Fprintf(w, "  %s %d  %s (%s)\n", r.Kind, r.Order, printable(r.ID), state)
		fmt.Fprintf(w, "    actions    %s\n", printable(string(r.Actions)))
		for _, condition := range r.conditions {
			fmt.Fprintf(w, "    condition  %s\n", printable(string(condition)))
		}
		if r.Pattern != nil {
			fmt.Fprintf(w, "    pattern    %s\n", printable(strconv.Quote(*r.Pattern)))
		}
	}
	if len(s.Rules) > 0 {
		fmt.Fprintln(w)
	}
}

func (s unreadList) write(w io.Writer) {
	if s.Bytes > 0 {
		fmt.Fprintf(w, "Unread counts: %s\n  %d bytes, %d operations, %d notifications in %d rooms\n\n",
			printable(s.Key), s.Bytes, s.Operations, s.Notifications, s.Rooms)
	}
}

func (s shownPushers) write(w io.Writer) {
	s.shownKeyed.write(w, "Pushers")
	for i, p := range s.Pushers {
		fmt.Fprintf(w, "  %s %d  %s\n", printable(string(p.Kind)), i+1, printable(p.AppID))
		fmt.Fprintf(w, "    digest     %s\n", p.Pusher)
		fmt.Fprintf(w, "    pushkey    %s, claim %d\n", printable(p.Entry), p.Claim)
		if p.Taken {
			fmt.Fprintln(w, "    taken      by another user, gets nothing")
		}
		if p.Inactive {
			fmt.Fprintln(w, "    inactive   its app has not returned the token of the first push, gets nothing else")
		}
		fmt.Fprintf(w, "    device     %s\n", p.device())
		fmt.Fprintf(w, "    data       %d bytes, URL host %s\n", p.DataBytes, printable(p.Host))
	}
	if len(s.Pushers) > 0 {
		fmt.Fprintln(w)
	}
}
