package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/schollz/progressbar/v3"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread/fold"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	logging.Disable() // as main does
	os.Exit(redistest.RunSideBySide(m))
}

const (
	alice mxid.UserID = "@alice:example.org"
	bob   mxid.UserID = "@bob:example.org"
	carol mxid.UserID = "@carol:example.org"
)

// secret is a part of data that no output may show.
const secret = "hush"

// fixture is a Redis with data of hosts.
type fixture struct {
	t     *testing.T
	where []string // the flags of the connection
	*backend
	service module.PusherService
}

func onOne(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, "-redis", redistest.Single(t).Addr())
}

func newFixture(t *testing.T, where ...string) *fixture {
	t.Helper()
	f := newFlags(command{})
	if _, err := f.parseAll(where); err != nil {
		t.Fatal(err)
	}
	b, err := f.connect(t.Context(), noEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.close() })
	return &fixture{t, where, b, service.New(module.Stores{Pushers: b.pushers, Pushkeys: b.index}, nil, service.Options{Policy: pusher.DefaultPolicy()}).Pushers()}
}

func noEnvironment(string) string { return "" }

type result struct {
	status         int
	stdout, stderr string
}

// ctl runs pushctl, and checks that it shows no secrets.
func (b *fixture) ctl(args ...string) result {
	b.t.Helper()
	return b.ctlIn(b.t.Context(), args...)
}

func (b *fixture) ctlIn(ctx context.Context, args ...string) result {
	b.t.Helper()
	r := runIn(ctx, noEnvironment, slices.Concat(args, b.where)...)
	if strings.Contains(r.stdout+r.stderr, secret) && args[0] != "export" {
		b.t.Errorf("pushctl %s shows a secret:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	}
	return r
}

func runIn(ctx context.Context, environment func(string) string, args ...string) result {
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, environment, &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

func (b *fixture) want(status int, args ...string) result {
	b.t.Helper()
	r := b.ctl(args...)
	if r.status != status {
		b.t.Fatalf("pushctl %s: status %d, want %d\n%s%s", strings.Join(args, " "), r.status, status, r.stdout, r.stderr)
	}
	return r
}

// says runs a command whose results contain a text.
func (b *fixture) says(text string, status int, args ...string) {
	b.t.Helper()
	if r := b.want(status, args...); !strings.Contains(r.stdout, text) {
		b.t.Errorf("pushctl %s: want %q in\n%s", strings.Join(args, " "), text, r.stdout)
	}
}

// complains runs a command whose error contains a text.
func (b *fixture) complains(text string, status int, args ...string) {
	b.t.Helper()
	if r := b.want(status, args...); !strings.Contains(r.stderr, text) {
		b.t.Errorf("pushctl %s: want %q in\n%s", strings.Join(args, " "), text, r.stderr)
	}
}

// register gives users the default rules, a rule and a pusher.
func (b *fixture) register(users ...mxid.UserID) {
	b.t.Helper()
	for _, user := range users {
		if err := b.host.EnsureDefaults(b.t.Context(), user); err != nil {
			b.t.Fatal(err)
		}
		b.editRules(user, func(rules *pushrule.Ruleset) error {
			return rules.Put(pushrule.Room, "!room:example.org", pushrule.Draft{}, pushrule.Position{})
		})
		b.set(user, string(user))
	}
}

func (b *fixture) editRules(user mxid.UserID, edit func(*pushrule.Ruleset) error) {
	b.t.Helper()
	if _, err := b.rules.Update(b.t.Context(), user, func(rules *pushrule.Ruleset, _ bool) error { return edit(rules) }); err != nil {
		b.t.Fatal(err)
	}
}

func aPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: secret + pushkey}, Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: "Phone",
		Lang: "en", Device: "DEV", Data: `{"url":"https://push.example.org/_matrix/push/v1/notify?` + secret + `"}`,
	}
}

// set sets a pusher and keeps other users' pushers.
func (b *fixture) set(user mxid.UserID, pushkey string) {
	b.t.Helper()
	if err := b.service.Set(b.t.Context(), user, aPusher(pushkey), pusher.KeepOthers); err != nil {
		b.t.Fatal(err)
	}
}

// plant stores a pusher as it is, without its claim.
func (b *fixture) plant(user mxid.UserID, p pusher.Pusher) {
	b.t.Helper()
	if err := b.pushers.Update(b.t.Context(), user, func(list *pusher.List) error {
		list.Set(p)
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *fixture) do(args ...any) {
	b.t.Helper()
	if err := b.client.Do(b.t.Context(), args...).Err(); err != nil {
		b.t.Fatal(args[0], err)
	}
}

// store stores an event that the module did not write.
func (b *fixture) store(user mxid.UserID, text string) {
	b.t.Helper()
	b.do("SET", b.keys.Rules(user), text)
}

func (b *fixture) spoil(user mxid.UserID, old, with string) {
	b.t.Helper()
	text := b.client.Get(b.t.Context(), b.keys.Rules(user)).Val()
	if !strings.Contains(text, old) {
		b.t.Fatalf("%q is not in %s", old, text)
	}
	b.store(user, strings.Replace(text, old, with, 1))
}

// answers returns the API's answers for the users.
func (b *fixture) answers(users ...mxid.UserID) map[mxid.UserID]string {
	b.t.Helper()
	all := map[mxid.UserID]string{}
	for _, user := range users {
		content, err := b.rules.Load(b.t.Context(), user)
		list, listErr := b.pushers.Load(b.t.Context(), user)
		all[user] = fmt.Sprintf("%s %v\n%s %v", content.AppendJSON(nil), err, list.AppendJSON(nil), listErr)
	}
	return all
}

func (b *fixture) version(user mxid.UserID) int64 {
	b.t.Helper()
	content, err := b.rules.Load(b.t.Context(), user)
	if err != nil {
		b.t.Fatal(err)
	}
	return content.Version
}

func (b *fixture) masters() (all []*redis.Client) {
	b.t.Helper()
	var mu sync.Mutex
	err := b.eachMaster(b.t.Context(), func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, master)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// stored returns all values, byte for byte.
func (b *fixture) stored() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, master := range b.masters() {
		for _, key := range master.Keys(b.t.Context(), "*").Val() {
			text, err := master.Get(b.t.Context(), key).Result()
			if redis.HasErrorPrefix(err, "WRONGTYPE") {
				text = fmt.Sprint(master.HGetAll(b.t.Context(), key).Val())
			}
			all[key] = text
		}
	}
	return all
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update rewrites it); got\n%s", file, got)
	}
}

func TestWrongCallsFail(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "want a command"},
		{"unknown command", []string{"destroy"}, `unknown command "destroy"`},
		{"no Redis", []string{"check"}, "want -redis or $PUSHCTL_REDIS"},
		{"no user", []string{"show", "-redis", "127.0.0.1:1"}, "want pushctl show [flags] USER"},
		{"argument too many", []string{"check", "all", "-redis", "127.0.0.1:1"}, "want pushctl check [flags]"},
		{"unknown flag", []string{"check", "-fast"}, "-fast"},
		{"flag of another command", []string{"check", "-yes"}, "-yes"},
		{"embedded", []string{"check", "-redis-mode", "embedded"}, "standalone, sentinel or cluster"},
		{"password on the command line", []string{"check", "-redis", "redis://user:" + secret + "@127.0.0.1"}, "all users of this machine can see"},
		{"sentinel's password", []string{"check", "-redis-mode", "sentinel", "-redis", "redis://:" + secret + "@127.0.0.1"}, "all users of this machine can see"},
		{"password in an option", []string{"check", "-redis-mode", "sentinel", "-redis", "redis://a?password=" + secret}, "all users of this machine can see"},
		{"bad URL", []string{"check", "-redis", "redis://user:" + secret + "%@127.0.0.1"}, "not understood"},
		{"prefix with braces", []string{"check", "-redis", "127.0.0.1:1", "-key-prefix", "{a}"}, "-key-prefix"},
		{"rate below zero", []string{"check", "-redis", "127.0.0.1:1", "-rate", "-3"}, "-rate"},
		{"unknown durability", []string{"repair", "-redis", "127.0.0.1:1", "-durability", "much"}, "-durability"},
		{"no default rules", []string{"check", "-redis", "127.0.0.1:1", "-default-rules", "/none"}, "-default-rules"},
		{"no answer", []string{"check", "-redis", "127.0.0.1:1"}, "127.0.0.1:1 does not answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := runIn(t.Context(), noEnvironment, test.args...)
			if r.status != exitFailure || r.stdout != "" || !strings.Contains(r.stderr, test.want) || strings.Count(r.stderr, "\n") != 1 ||
				strings.Contains(r.stderr, secret) {
				t.Errorf("status %d, %q, want %q", r.status, r.stderr, test.want)
			}
		})
	}
}

func TestVersionNeedsNoRedis(t *testing.T) {
	t.Parallel()
	r := runIn(t.Context(), noEnvironment, "version")
	if r.status != exitOK || !strings.HasPrefix(r.stdout, "pushctl ") || !strings.HasSuffix(r.stdout, " "+runtime.Version()+"\n") || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
	if r := runIn(t.Context(), noEnvironment, "version", "-x"); r.status != exitFailure || !strings.Contains(r.stderr, "want pushctl version") {
		t.Errorf("with a flag: got %+v", r)
	}
}

// A bar that is wider than the terminal would fill it with lines.
func TestTheBarFitsOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{45, 79} {
		var out bytes.Buffer
		bar := progressbar.NewOptions64(1_234_567, append(barOptions(columns),
			progressbar.OptionSetWriter(&out), progressbar.OptionSetDescription("refreshed"))...)
		_ = bar.Add64(1_234_567 - 1)
		lines := strings.Split(out.String(), "\r")
		if last := lines[len(lines)-1]; !strings.Contains(last, "1234566/1234567") {
			t.Errorf("got %q", lines)
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%d columns: a bar of %d: %q", columns, n, line)
			}
		}
	}
	var out bytes.Buffer
	_ = progressbar.NewOptions64(2, append(barOptions(44), progressbar.OptionSetWriter(&out))...).Add(1)
	if out.Len() > 0 {
		t.Errorf("a terminal of 44 columns gets %q", &out)
	}
}

func TestEachCommandHasAUsage(t *testing.T) {
	t.Parallel()
	usage := runIn(t.Context(), noEnvironment, "-h")
	for _, c := range commands() {
		r := runIn(t.Context(), noEnvironment, c.name, "-h")
		if r.status != exitOK || !strings.Contains(r.stdout, "Usage: pushctl "+c.name) || !strings.Contains(r.stdout, "  -redis-mode") {
			t.Errorf("%s: status %d, %s", c.name, r.status, r.stdout)
		}
		if !strings.Contains(usage.stdout, "  "+c.name) {
			t.Errorf("%s is not in the list", c.name)
		}
		about, _, _ := strings.Cut(r.stdout, "Usage: ")
		for line := range strings.Lines(about) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > maxColumns {
				t.Errorf("%s -h: a line of %d columns: %s", c.name, n, line)
			}
		}
		for line := range strings.Lines(r.stdout + usage.stdout) {
			if utf8.RuneCountInString(line) > 101+15 { // a flag's text may begin after its name
				t.Errorf("%s -h: a line of %d columns: %s", c.name, len(line), line)
			}
		}
	}
}

// The tables have long cells.
func TestNoTableIsWiderThanATerminal(t *testing.T) {
	t.Parallel()
	now, host := time.Now(), "https://push-gateway-of-a-long-name.example.org:8443"
	phone := namedPusher{"I0rGUzqbEPAr7oXUSnlEDg", "org.example.app.ios", "ABCDEFGHIJ", "Alice's telephone for work and for home"}
	found := newReport()
	for _, k := range []kind{
		unreadableEvent, emptyEvent, unreadablePushers, pusherUnindexed, unreadablePushkey, pusherTaken,
		otherVersion, expiringKey, unreadableEntry, wrongType, misplacedKey, unknownKey, ruleProblem(pushrule.ForeignDefault), ruleProblem(pushrule.FeatureOff),
	} {
		for range 1000 {
			found.count(k)
		}
	}
	for name, write := range map[string]func(io.Writer) error{
		"queues": func(w io.Writer) error {
			return shownQueues{Users: 1_312_000, Due: 1_000_000, Hanging: 1_000_000, Oldest: 86400, Late: 123456.789}.write(w)
		},
		"queues show": func(w io.Writer) error {
			return writeQueues(w, []shownQueue{{
				namedPusher: phone, Gateway: host, State: stateClosed, Since: now.Add(-20 * time.Hour),
			}}, now)
		},
		"gateways": func(w io.Writer) error {
			return writeGateways(w, []shownGateway{{
				Gateway: host, App: "org.example.app.ios", Since: now.Add(-20 * time.Hour), Users: 312000,
			}}, now)
		},
		"send-test": func(w io.Writer) error {
			return writeTestTable(w, []shownTest{{namedPusher: phone, Gateway: host, Why: "dial tcp 127.0.0.1:17404: dialguard: refused: prohibited IP address: 127.0.0.1 is not a permitted destination (denied by: 127.0.0.0/8)"}})
		},
		"check": func(w io.Writer) error { return found.write(w, "standalone at 127.0.0.1:6379", "No problems.") },
		"repair, dry": func(w io.Writer) error {
			_ = (&repairer{call: &call{backend: &backend{}, out: w}, report: found}).write(nil)
			return nil
		},
		"repair": func(w io.Writer) error {
			_ = (&repairer{call: &call{backend: &backend{}, out: w, options: options{yes: true, resetDamaged: true}}, report: found}).write(nil)
			return nil
		},
	} {
		var text bytes.Buffer
		if err := write(&text); err != nil || text.Len() == 0 {
			t.Fatal(name, err)
		}
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
				t.Errorf("%s: a line of %d columns: %s", name, n, line)
			}
		}
	}
}

func TestAURLWithAPasswordComesFromTheEnvironment(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--requirepass", secret)
	const stored = `{"type":"m.push_rules","content":{"global":{}}}`
	if err := server.Client(t).Set(t.Context(), "account_data:{@alice:example.org}:m.push_rules", stored, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for name, environment := range map[string]map[string]string{
		"URL":      {redisVariable: "redis://default:" + secret + "@" + server.Addr()},
		"password": {redisVariable: server.Addr(), "REDIS_PASSWORD": secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runIn(t.Context(), func(name string) string { return environment[name] }, "show", string(alice))
			if r.status != exitOK || !strings.HasPrefix(r.stdout, "@alice:example.org on "+server.Addr()+"\n") || strings.Contains(r.stdout+r.stderr, secret) {
				t.Errorf("status %d, %s%s", r.status, r.stdout, r.stderr)
			}
		})
	}
	r := runIn(t.Context(), noEnvironment, "check", "-redis", server.Addr())
	if r.status != exitFailure || !strings.Contains(r.stderr, "NOAUTH") {
		t.Errorf("without a password: status %d, %s", r.status, r.stderr)
	}
}

func TestAClusterWithoutSlotsIsReported(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--cluster-enabled", "yes")
	for _, command := range []string{"check", "queues", "gateways"} {
		r := runIn(t.Context(), noEnvironment, command, "-redis-mode", "cluster", "-redis", server.Addr())
		if r.status != exitFailure || !strings.Contains(r.stderr, "is not created yet") {
			t.Errorf("%s: status %d, %s", command, r.status, r.stderr)
		}
	}
}

// The user has fixed revisions for the golden files.
func (b *fixture) storeForGolden() {
	b.t.Helper()
	rules := b.defaults.For(alice)
	if err := rules.Put(pushrule.Content, "lunch", pushrule.Draft{Pattern: "lunch\x1b[31m", Actions: []pushrule.Action{`"notify"`}}, pushrule.Position{}); err != nil {
		b.t.Fatal(err)
	}
	const revision = `,"revision":{"version":1763716975000000,"changes":12,"writers":{}}}`
	b.store(alice, strings.TrimSuffix(eventOf(rules), "}")+revision)
	p := aPusher("alice")
	p.Created, p.Claim = 1, 1763716975000000
	b.do("HSET", b.keys.Pushers(alice), p.Field(), string(p.AppendStored(nil)), "revision", `{"version":1763716975000001,"changes":1,"writers":{}}`)
	b.do("SET", b.keys.Pushkey(p.Digest()), `{"taken":1763716975000000,"holders":{"@alice:example.org":1763716975000000},"losers":{}}`)
	op := fold.Op{Kind: fold.Notified, Room: "!r", Position: 1, Thread: fold.Main, Actions: `["notify"]`}
	folded, err := fold.Fold([]string{op.Text()})
	if err != nil {
		b.t.Fatal(err)
	}
	record := folded.Text()
	op.Position = 2
	b.do("RPUSH", b.keys.Unread(alice), record, stored.UnreadDigest(record), op.Text())
}

func TestShow(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.storeForGolden()
	address := b.where[1]
	for file, args := range map[string][]string{
		"show.txt":  {"show", string(alice)},
		"show.json": {"show", "--json", string(alice)},
	} {
		checkGolden(t, file, strings.ReplaceAll(b.want(exitOK, args...).stdout, address, "HOST:PORT"))
	}
	b.store(alice, "no JSON")
	b.says("unreadable push rules", exitOK, "show", string(alice))
	if r := b.ctl("show", "alice"); r.status != exitFailure || !strings.Contains(r.stderr, "want @NAME:SERVER") {
		t.Errorf("status %d, %s", r.status, r.stderr)
	}
}
