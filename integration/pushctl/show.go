package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

func showCommand() command {
	return command{
		name: "show", args: "USER",
		summary: "shows what is stored for a user",
		about: "Shows the push rules and pushers of a user as they are stored, with their keys. Pushkeys are\n" +
			"credentials: they are shown as a hash, by which equal ones are told within a call, and with\n" +
			"-hash-key FILE across calls. Of a pusher's data only the host of the URL is shown.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addDefaultRules(flags)
			flags.BoolVar(&o.json, "json", false, "write JSON")
			flags.StringVar(&o.hashKey, "hash-key", "", "`FILE` with the key for the hashes of pushkeys, of 16 bytes or more; else it is a\n"+
				"random one, and the hashes differ from call to call")
		},
		run: func(ctx context.Context, c *call) error { return c.show(ctx) },
	}
}

// shownUser is what is stored for a user.
type shownUser struct {
	User     mxid.UserID     `json:"user"`
	Node     string          `json:"node"`
	Rules    shownRules      `json:"push_rules"`
	Pushers  shownPushers    `json:"pushers"`
	Problems []listedProblem `json:"problems"`
	random   bool            // the hashes are good for this call only
}

// shownKeyed is what rules and pushers have in common.
type shownKeyed struct {
	Key     string `json:"key"`
	Bytes   int    `json:"bytes"` // 0 if nothing is stored
	Version int64  `json:"version,omitempty"`
	Changes int64  `json:"changes,omitempty"`
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

type shownPusher struct {
	AppID       string      `json:"app_id"`
	Kind        pusher.Kind `json:"kind"`
	PushkeyHash string      `json:"pushkey_hash"`
	Index       string      `json:"index_key"`
	Device      string      `json:"device_id"`
	DeviceName  string      `json:"device_display_name"`
	Host        string      `json:"url_host"`
	DataBytes   int         `json:"data_bytes"`
	Claim       int64       `json:"claim"`
}

func (c *call) show(ctx context.Context) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	hash, err := newHasher(c.hashKey)
	if err != nil {
		return fmt.Errorf("-hash-key: %w", err)
	}
	shown, err := c.shown(ctx, user, hash)
	if err != nil {
		return err
	}
	if c.json {
		return writeJSON(c.out, shown)
	}
	shown.random = c.hashKey == ""
	_, err = io.WriteString(c.out, shown.page(c.width))
	return err
}

// shown reads what is stored for a user.
func (c *call) shown(ctx context.Context, user mxid.UserID, hash hasher) (shownUser, error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	names := []string{c.keys.Rules(user), c.keys.Pushers(user)}
	s := shownUser{User: user, Problems: []listedProblem{}}
	node, err := c.nodeOf(ctx, names[0])
	if err != nil {
		return s, err
	}
	s.Node = c.addressOf(node)
	values, err := c.readValues(ctx, c.client, names)
	if err != nil {
		return s, err
	}
	s.Rules, s.Pushers = c.shownRules(values[0]), c.shownPushers(values[1], hash)
	x, err := c.examine(ctx, node, names)
	if err != nil {
		return s, err
	}
	d := &doubts{backend: c.backend}
	d.add(x.doubtful)
	sure, err := d.decide(ctx)
	for _, p := range append(x.sure, sure...) {
		s.Problems = append(s.Problems, p.listed())
	}
	return s, err
}

func (c *call) shownRules(v value) shownRules {
	s := shownRules{shownKeyed{Key: v.name, Bytes: len(v.text)}, []shownRule{}}
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

func (c *call) shownPushers(v value, hash hasher) shownPushers {
	s := shownPushers{shownKeyed{Key: v.name}, []shownPusher{}}
	for field, text := range v.fields {
		s.Bytes += len(field) + len(text)
	}
	h := stored.ReadHash(v.fields)
	s.Version, s.Changes = h.Revision.Version, h.Revision.Changes
	for _, p := range h.Pushers.All() {
		s.Pushers = append(s.Pushers, shownPusher{
			AppID: p.AppID, Kind: p.Kind, PushkeyHash: hash(p.Pushkey), Index: c.keys.Claims(p.Digest()), Device: p.Device,
			DeviceName: p.DeviceDisplayName, Host: urlHost(p.Data), DataBytes: len(p.Data), Claim: p.Claim.Number,
		})
	}
	return s
}

// urlHost returns the host of the URL in a pusher's data, if there is one.
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

// hasher makes a pushkey known again without telling it.
type hasher func(pushkey string) string

// newHasher returns a hasher with the key in a file or, without one, a key of
// its own.
func newHasher(file string) (hasher, error) {
	key := make([]byte, sha256.Size)
	if file == "" {
		_, _ = rand.Read(key) // it never fails
	} else {
		var err error
		if key, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		if len(key) < 16 {
			return nil, fmt.Errorf("%s has %d bytes, want at least 16", file, len(key))
		}
	}
	return func(pushkey string) string {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(pushkey))
		return hex.EncodeToString(mac.Sum(nil)[:6])
	}, nil
}

// page tells it in lines that fit a width.
func (s shownUser) page(width int) string {
	p := &page{width: width}
	p.line("", fmt.Sprintf("%s on %s", printable(string(s.User)), s.Node))
	p.line("", "")
	s.Rules.write(p)
	s.Pushers.write(p, s.random)
	if len(s.Problems) == 0 {
		p.line("", "No problems.")
		return p.text.String()
	}
	p.line("", "Problems:")
	for _, listed := range s.Problems {
		p.line("  ", string(listed.Problem)+" "+printable(listed.Detail))
	}
	return p.text.String()
}

// write writes the key and what is told of it.
func (k shownKeyed) write(p *page, what string) {
	p.line(what+": ", printable(k.Key))
	switch {
	case k.Bytes == 0:
		p.line("  ", "nothing is stored")
	case k.Version == 0:
		p.line("  ", fmt.Sprintf("%d bytes, without a version", k.Bytes))
	default:
		p.line("  ", fmt.Sprintf("%d bytes, version %d (%s), changed %d times", k.Bytes, k.Version, timeOf(k.Version), k.Changes))
	}
	p.line("", "")
}

func (s shownRules) write(p *page) {
	s.shownKeyed.write(p, "Push rules")
	for _, r := range s.Rules {
		state := "enabled"
		if !r.Enabled {
			state = "disabled"
		}
		if r.Default {
			state += ", default"
		}
		p.line(fmt.Sprintf("  %s %d  ", r.Kind, r.Order), printable(r.ID)+" ("+state+")")
		p.line("    actions    ", printable(string(r.Actions)))
		for _, condition := range r.conditions {
			p.line("    condition  ", printable(string(condition)))
		}
		if r.Pattern != nil {
			p.line("    pattern    ", printable(strconv.Quote(*r.Pattern)))
		}
	}
	if len(s.Rules) > 0 {
		p.line("", "")
	}
}

func (s shownPushers) write(p *page, random bool) {
	s.shownKeyed.write(p, "Pushers")
	for i, shown := range s.Pushers {
		p.line(fmt.Sprintf("  %s %d  ", printable(string(shown.Kind)), i+1), printable(shown.AppID))
		p.line("    pushkey    ", "hash "+shown.PushkeyHash+", claim "+strconv.FormatInt(shown.Claim, 10))
		p.line("    device     ", printable(shown.Device+" "+strconv.Quote(shown.DeviceName)))
		p.line("    data       ", fmt.Sprintf("%d bytes, URL host %s", shown.DataBytes, printable(shown.Host)))
	}
	if random && len(s.Pushers) > 0 {
		p.line("", "")
		p.line("", "The hashes are good for this call only (-hash-key keeps them).")
	}
	if len(s.Pushers) > 0 {
		p.line("", "")
	}
}

// printable is a text that users chose, without what a terminal obeys.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
