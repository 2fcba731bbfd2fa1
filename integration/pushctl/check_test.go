package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/fold"
)

type damage struct {
	name    string
	kind    kind
	outcome outcome
	make    func(*fixture)
}

type outcome string

const (
	fixed outcome = "fixed"
	left  outcome = "left"
	reset outcome = "fixed with -reset-damaged"
)

// stores stores a text as alice's event.
func stores(text string) func(*fixture) { return func(b *fixture) { b.store(alice, text) } }

// spoils replaces a part of alice's event.
func spoils(old, with string) func(*fixture) { return func(b *fixture) { b.spoil(alice, old, with) } }

func runs(args ...any) func(*fixture) { return func(b *fixture) { b.do(args...) } }

func inOrder(steps ...func(*fixture)) func(*fixture) {
	return func(b *fixture) {
		for _, take := range steps {
			take(b)
		}
	}
}

// manyInvites returns a record that had no place for all invites.
func manyInvites() string {
	var list []string
	for i := range 200 {
		op := fold.Op{Kind: fold.Notified, Room: fmt.Sprintf("!%0254d", i), Position: 1, Thread: fold.Main, Time: int64(i + 1), Invite: true, Actions: `["notify"]`}
		list = append(list, op.Text())
	}
	record, err := fold.Fold(list)
	if err != nil {
		panic(err)
	}
	return record.Text()
}

// waits makes a notification wait for a pusher of alice.
func waits(keys stored.Keys, until int64) func(*fixture) {
	const gate = "g g"
	return inOrder(runs("HSET", keys.UserLog(alice), stored.LogField, "1 2 1 0 1 0 ", stored.IDsField, ",event001", stored.EntryField(1), `hevent001room00011700000000000 {"e":"$1","r":"!r:x","a":1,"x":4000000000000}`,
		"pusher", fmt.Sprintf(`%d - 1 %s 0 {"n":1,"s":1,"l":1,"c":503,"g":"%s"}`, until, stored.GateDigest(gate), gate)),
		runs("ZADD", keys.ShardDue(0, gate), 1, string(alice)), runs("ZADD", keys.ShardGates(0), 1, gate))
}

// damages returns each kind of problem that a single server can have.
func damages(keys stored.Keys) []damage {
	tooLate := time.Now().Add(2*channel.MaxWait).UnixMicro() | 1
	const (
		mine   = `{"rule_id":"mine","default":false,"enabled":true,"conditions":[],"actions":[]}`
		room   = `{"rule_id":"!room:example.org","default":false,"enabled":true,"actions":[]}`
		noisy  = `{"rule_id":"!room:example.org","default":false,"enabled":true,"actions":["notify"]}`
		legacy = `{"rule_id":".m.rule.contains_user_name","default":true,"enabled":true,"pattern":"alice","actions":[]}`
		taken  = `{"form":2,"last":9000000000000000,"taken":9000000000000000,"by":"@bob:example.org","users":["@bob:example.org"]}`
		others = `{"rule_id":".org.example.rule","default":true,"enabled":false,"actions":[]}`
	)
	second, other := aPusher("2"), aPusher("x")
	second.Created = 7
	address := second
	address.Key, address.Kind, address.Claim = pusher.Key{AppID: pusher.EmailAppID, Pushkey: secret + "@example.org"}, pusher.Email, 17
	own := aPusher(string(alice))
	pushers, entry, unusedEntry := keys.Pushers(alice), keys.Pushkey(own.Digest()), keys.Pushkey(other.Digest())
	op := fold.Op{Kind: fold.Notified, Room: "!r", Position: 1, Thread: fold.Main, Actions: `["notify"]`}.Text()
	counts, longList := keys.Unread(alice), []any{"RPUSH", keys.Unread(alice)}
	for range unread.MaxOps + 1 {
		longList = append(longList, op)
	}
	return []damage{
		{"no JSON", unreadableEvent, left, stores("no JSON")},
		{"no JSON, reset", unreadableEvent, reset, stores("no JSON")},
		{"no content", emptyEvent, fixed, stores(`{"type":"m.push_rules"}`)},
		{"a rule twice", ruleProblem(pushrule.DuplicateRules), fixed, spoils(room, room+","+room)},
		{"two different rules with one id", ruleProblem(pushrule.DuplicateRules), left, spoils(room, room+","+noisy)},
		{"a rule above the master rule", ruleProblem(pushrule.MasterNotFirst), fixed, spoils(`"override":[`, `"override":[`+mine+`,`)},
		{"a legacy rule", ruleProblem(pushrule.LegacyRule), fixed, spoils(`"content":[`, `"content":[`+legacy)},
		{"another host's default", ruleProblem(pushrule.ForeignDefault), left, spoils(`"sender":[`, `"sender":[`+others)},
		{"an old default", ruleProblem(pushrule.StaleDefaults), fixed, spoils("m.room.tombstone", "m.room.grave")},

		{"a damaged pusher", unreadablePushers, left, runs("HSET", pushers, own.Field(), secret)},
		{"a damaged pusher, reset", unreadablePushers, reset, runs("HSET", pushers, `["x","`+secret+`"]`, secret)},
		{"a pusher without a claim", pusherUnindexed, fixed, runs("HSET", pushers, second.Field(), string(second.AppendStored(nil)))},

		{"an address without an entry", pusherUnindexed, fixed, runs("HSET", pushers, address.Field(), string(address.AppendStored(nil)))},
		{"a damaged entry", unreadablePushkey, fixed, runs("SET", unusedEntry, "no JSON")},
		{"a damaged entry of a pusher", unreadablePushkey, fixed, runs("SET", entry, "no JSON")},
		{"an entry of an early development version", unreadablePushkey, fixed, runs("SET", unusedEntry, `{"claims":{"17":"@bob:example.org"},"revision":{"version":1,"changes":1,"writers":{}}}`)},
		{"a pusher that bob has taken", pusherTaken, fixed, runs("SET", entry, taken)},

		{"push rules that expire", expiringKey, fixed, runs("EXPIRE", keys.Rules(alice), 3600)},
		{"pushers that expire", expiringKey, fixed, runs("EXPIRE", pushers, 3600)},
		{"an entry of an address that expires", expiringKey, fixed, runs("SET", unusedEntry, `{"form":2,"last":1,"taken":0,"by":"","users":["@bob:example.org"],"address":true}`, "EX", 3600)},
		{"pending pushkeys of an early development version", otherVersion, left, runs("ZADD", "pushkeys:pending", 17, "x")},

		{"push rules of a later version", otherVersion, left, spoils(`"revision":{`, `"revision":{"form":2,`)},
		{"pushers of a later version", otherVersion, left, runs("HSET", pushers, "revision", `{"form":2}`)},
		{"an entry of a later version", otherVersion, left, runs("SET", entry, `{"form":3}`)},
		{"an entry of an earlier version", otherVersion, left, runs("SET", entry, `{"taken":17,"holders":{"@bob:example.org":17},"losers":{}}`)},
		{"a queue of a later version", otherVersion, left, runs("SET", keys.DeliveryFormat(), "6 8")},
		{"a queue of an earlier version", otherVersion, left, runs("SET", keys.DeliveryFormat(), "1 8")},
		{"a log of an earlier version", otherVersion, left, runs("XADD", "delivery:{000}:log", "*", "d", secret)},
		{"unreadable unread counts", unreadableUnread, left, runs("RPUSH", counts, op, secret)},
		{"unread counts of a later version", otherVersion, left, runs("RPUSH", counts, "2"+op[1:])},
		{"unread counts of an earlier version", otherVersion, left, runs("RPUSH", counts, "1R", op)},
		{"shortened unread counts", shortenedUnread, left, runs("RPUSH", counts, manyInvites(), stored.UnreadDigest(manyInvites()))},
		{"a long list of unread counts", longUnread, left, runs(longList...)},
		{"unread counts that expire", expiringKey, fixed, inOrder(runs("RPUSH", counts, op), runs("EXPIRE", counts, 3600))},
		{"unread counts of another type", wrongType, left, runs("SET", counts, "x")},
		{"an unreadable notification", unreadableEntry, left, inOrder(waits(keys, 1), runs("HSET", keys.UserLog(alice), stored.EntryField(1), secret))},
		{"an unreadable pusher in a log", unreadableState, left, runs("HSET", keys.UserLog(alice), "x", secret)},
		{"a user who is not listed", notListed, fixed, inOrder(waits(keys, 1), runs("DEL", keys.ShardDue(0, "g g")))},
		{"a gate that is not listed", notListed, fixed, inOrder(waits(keys, 1), runs("DEL", keys.ShardGates(0)))},
		{"a user who is listed too late", notListed, fixed, inOrder(waits(keys, 1), runs("ZADD", keys.ShardDue(0, "g g"), tooLate, string(alice)))},
		{"a pusher that is due too late", notListed, fixed, waits(keys, tooLate)},
		{"a log that expires", expiringKey, fixed, inOrder(waits(keys, 1), runs("EXPIRE", keys.UserLog(alice), 3600))},

		{"a log of another type", wrongType, left, runs("SET", keys.UserLog(alice), "x")},
		{"due times of another type", wrongType, left, runs("SET", keys.ShardDue(0, "g"), "x")},
		{"gates of another type", wrongType, left, runs("SET", keys.ShardGates(0), "x")},
		{"due times of another type beside what waits", wrongType, left, inOrder(waits(keys, 1), runs("SET", keys.ShardDue(1, "g g"), "x"))},
		{"gates of another type beside what waits", wrongType, left, inOrder(waits(keys, 1), runs("SET", keys.ShardGates(1), "x"))},
		{"an event of another type", wrongType, left, runs("RPUSH", keys.Rules(carol), "x")},
		{"pushers of another type", wrongType, left, runs("SET", keys.Pushers(carol), "x")},
		{"an entry of another type", wrongType, left, inOrder(runs("DEL", entry), runs("RPUSH", entry, "x"))},
		{"pushers without a hash tag", unknownKey, left, runs("SET", "pushers:@alice:example.org", "x")},
		{"a pushkey without a digest", unknownKey, left, runs("SET", "pushkey:{"+secret+"}", "x")},
		{"push rules without a hash tag", unknownKey, left, runs("SET", "account_data:@alice:example.org:m.push_rules", "x")},
	}
}

func TestEachProblemIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	for _, d := range damages(stored.Keys{}) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			b := onOne(t)
			b.register(alice, bob)
			b.want(exitOK, "check")
			d.make(b)
			before := b.stored()

			r := b.want(exitProblems, "check", "-list")
			if n := strings.Count(r.stdout, d.kind.name+"\t"); n != 1 || strings.Contains(r.stdout, "No problems") {
				t.Errorf("found %d times:\n%s", n, r.stdout)
			}
			r = b.want(exitProblems, "repair")
			if !strings.Contains(r.stdout, d.kind.name) || !maps.Equal(before, b.stored()) {
				t.Errorf("without -yes:\n%s", r.stdout)
			}
			status, saved := exitOK, filepath.Join(t.TempDir(), "saved")
			command := []string{"repair", "-yes", "-list", "-save", saved}
			if d.outcome == left {
				status = exitProblems
			}
			if d.outcome == reset || d.kind == otherVersion {
				command = append(command, "-reset-damaged")
			}
			r = b.want(status, command...)
			if d.outcome == left && !maps.Equal(before, b.stored()) {
				t.Errorf("changed data of a problem that it left:\n%s", r.stdout)
			}
			for line := range strings.Lines(r.stdout) {
				if row := strings.TrimSuffix(line, "\n"); strings.HasPrefix(row, d.kind.name+"  ") && d.outcome == left {
					if fields := strings.Fields(strings.TrimPrefix(row, d.kind.name)); len(fields) < 4 {
						t.Errorf("it does not say what to do: %s", row)
					}
				}
			}
			if d.kind == unreadableEvent || d.kind == unreadablePushers {
				checkSaved(t, saved)
			}
			b.want(status, "check")
		})
	}
}

// No command and no host changes or removes a value of another version.
func TestAValueOfAnotherVersionStays(t *testing.T) {
	t.Parallel()
	keys := stored.Keys{}
	for name, other := range map[string]struct {
		key  string
		make func(*fixture)
	}{
		"rules":        {keys.Rules(alice), spoils(`"revision":{`, `"revision":{"form":2,`)},
		"pushers":      {keys.Pushers(alice), runs("HSET", keys.Pushers(alice), "revision", `{"form":2}`)},
		"queue":        {keys.DeliveryFormat(), runs("SET", keys.DeliveryFormat(), "6 8")},
		"key of queue": {keys.ShardGates(0), inOrder(runs("SET", keys.DeliveryFormat(), "6 8"), runs("SET", keys.ShardGates(0), "x"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := onOne(t)
			b.register(alice)
			archive, with := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
			b.want(exitOK, "export", archive)
			b.editRules(alice, func(rules *pushrule.Ruleset) error {
				return rules.SetEnabled(pushrule.Override, ".m.rule.master", true)
			})
			b.set(alice, "2")
			other.make(b)
			before := b.stored()[other.key]
			isUser := b.keys.Parse(other.key).User != ""

			r := b.want(exitFailure, "forget", string(alice), "-yes")
			if !strings.Contains(r.stderr, "of another version") || b.stored()[keys.Pushkey(aPusher("2").Digest())] == "" {
				t.Errorf("forget: %s", r.stderr)
			}
			if isUser {
				b.want(exitFailure, "reset", string(alice), "-yes")
				if err := b.service.Set(t.Context(), bob, aPusher(string(alice)), pusher.RemoveOthers); err != nil {
					t.Errorf("bob takes her pushkey: %v", err)
				}
				err := b.service.Set(t.Context(), alice, aPusher(string(alice)+"3"), pusher.KeepOthers)
				if strings.Contains(name, "pushers") && !fault.IsOtherVersion(err) {
					t.Errorf("alice sets a pusher: %v", err)
				}
				b.want(exitProblems, "import", "-overwrite", archive)
				if err := b.host.ForgetUser(t.Context(), alice); !fault.IsOtherVersion(err) {
					t.Errorf("a host's ForgetUser: %v", err)
				}
				r = b.want(exitOK, "export", with)
				if !strings.Contains(r.stderr, "1 values are of another version") {
					t.Errorf("export: %s", r.stderr)
				}
				r = b.want(exitFailure, "import", "-overwrite", with)
				if !strings.Contains(r.stderr, "of another version") {
					t.Errorf("import: %s", r.stderr)
				}
			} else {
				b.want(exitFailure, "queues", "flush", string(alice), "-yes")
			}
			b.ctl("refresh-defaults", "-yes")
			b.want(exitProblems, "repair", "-yes", "-reset-damaged", "-save", filepath.Join(t.TempDir(), "c"))
			if got := b.stored()[other.key]; got != before {
				t.Errorf("%s was %q, is %q", other.key, before, got)
			}
		})
	}
}

func TestAQueueOfAnotherVersionIsNamed(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	b.do("SET", b.keys.DeliveryFormat(), "6 8")
	b.do("RPUSH", b.keys.ShardDue(0, "x"), secret)
	b.do("SET", b.keys.ShardGates(0), "a type of another version")
	r := b.want(exitProblems, "check", "-list")
	for _, line := range []string{
		"delivery:format\tform \"6 8\"\n",
		b.keys.ShardDue(0, "x") + "\t\n", b.keys.ShardGates(0) + "\t\n",
	} {
		if !strings.Contains(r.stdout, otherVersion.name+"\t"+line) {
			t.Errorf("want %s in\n%s", line, r.stdout)
		}
	}
	if strings.Contains(r.stdout, wrongType.name) || strings.Contains(r.stdout, notListed.name) {
		t.Errorf("judges keys of another version:\n%s", r.stdout)
	}
}

func TestListNamesKeysOfTheWrongType(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	keys := []string{b.keys.Rules(carol), b.keys.Pushers(carol), b.keys.Pushkey(aPusher("x").Digest()), b.keys.UserLog(carol)}
	for _, key := range keys {
		b.do("ZADD", key, 1, "x")
	}
	r := b.want(exitProblems, "check", "-list")
	for _, key := range keys {
		if !strings.Contains(r.stdout, wrongType.name+"\t"+key+"\t") {
			t.Errorf("%s is not in\n%s", key, r.stdout)
		}
	}
}

func TestRepairOfAnExpiryKeepsTheValue(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	before := b.stored()
	keys := []string{b.keys.Rules(alice), b.keys.Pushers(alice)}
	for _, key := range keys {
		b.do("EXPIRE", key, 3600)
	}
	b.says("  "+expiringKey.name+" "+keys[0]+" at 20", exitOK, "show", string(alice))
	b.want(exitOK, "repair", "-yes")
	for _, key := range keys {
		if left := b.client.TTL(t.Context(), key).Val(); left != -1 {
			t.Errorf("%s expires in %v", key, left)
		}
	}
	if !maps.Equal(before, b.stored()) {
		t.Error("the repair has changed a value")
	}
}

// checkSaved checks that a private file has the unreadable value.
func checkSaved(t *testing.T, name string) {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n, err := readArchive(file, func(_ int64, r record) error {
		if r.user != alice || r.event != nil && *r.event != "no JSON" {
			t.Errorf("saved %v", r)
		}
		return nil
	})
	if n != 1 || err != nil {
		t.Errorf("%d records, %v", n, err)
	}
}

func TestRepairKeepsUsersChoices(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice)
	b.editRules(alice, func(rules *pushrule.Ruleset) error {
		return errors.Join(rules.SetEnabled(pushrule.Underride, ".m.rule.message", false), rules.SetActions(pushrule.Override, ".m.rule.tombstone", nil))
	})
	want := b.answers(alice)
	b.spoil(alice, "m.room.tombstone", "m.room.grave")
	version := b.version(alice)
	b.want(exitOK, "repair", "-yes")
	if got := b.answers(alice); !maps.Equal(got, want) || b.version(alice) <= version {
		t.Errorf("got version %d after %d, %s", b.version(alice), version, got)
	}
}

func TestCheckReports(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	b.do("RPUSH", b.keys.Unread(alice), fold.Op{Kind: fold.Read, Room: "!r", Position: 1}.Text())
	b.want(exitOK, "check")
	checkGolden(t, "check-ok.txt", strings.ReplaceAll(b.want(exitOK, "check").stdout, b.where[1], "HOST:PORT"))
	b.spoil(alice, "m.room.tombstone", "m.room.grave")
	b.store(bob, "no JSON")
	second := aPusher("second")
	b.do("HSET", b.keys.Pushers(alice), second.Field(), string(second.AppendStored(nil)))
	b.do("SET", "pushers:\x1b[31m", "x")
	text := b.want(exitProblems, "check").stdout
	checkGolden(t, "check-problems.txt", strings.ReplaceAll(text, b.where[1], "HOST:PORT"))
	checkGolden(t, "check-problems.json", b.want(exitProblems, "check", "-json").stdout)
	r := b.want(exitProblems, "check", "-list", "-json")
	if !strings.Contains(r.stdout, `{"problem":"unreadable push rules","name":"@bob:example.org","detail":"`) {
		t.Error(r.stdout)
	}
	r = b.want(exitProblems, "repair")
	checkGolden(t, "repair-dry.txt", r.stdout)
}

func TestAPrefixIsNoPattern(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	b := newFixture(t, "-redis", server.Addr(), "-key-prefix", `hs[1]*\`)
	other := newFixture(t, "-redis", server.Addr(), "-key-prefix", `hs1x\`)
	b.register(alice)
	other.register(alice, bob)
	other.store(bob, "no JSON")
	b.says("  3 keys", exitOK, "check")
	b.do("SET", `hs[1]*\demo:outbox`, "") // the host's own
	b.want(exitOK, "check")
	b.do("SET", `hs[1]*\pushers:x`, "")
	b.says("unknown key", exitProblems, "check")
}

// The check runs while hosts change several keys at a time.
func TestNoFalseProblems(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *fixture{"single": onOne, "cluster": onCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.register("@steady:example.org")
			ctx, stop := context.WithCancel(t.Context())
			var hosts sync.WaitGroup
			for range 6 {
				hosts.Go(func() {
					for ctx.Err() == nil {
						if err := b.churn(ctx); err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Unavailable {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 3 {
				if r := b.ctl("check", "-list"); r.status != exitOK {
					t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
				}
			}
			stop()
			hosts.Wait()
		})
	}
}

func (b *fixture) churn(ctx context.Context) error {
	user := mxid.UserID(fmt.Sprintf("@user%d:example.org", rand.N(40)))
	p := aPusher(fmt.Sprint(rand.N(10)))
	switch rand.N(6) {
	case 0:
		return b.host.ForgetUser(ctx, user)
	case 1:
		return b.service.Delete(ctx, user, p.Key)
	case 2:
		return b.service.Set(ctx, user, p, pusher.RemoveOthers)
	case 3:
		return b.host.KeepOnlyDevicePushers(ctx, user, "")
	case 4:
		return b.host.EnsureDefaults(ctx, user)
	}
	return b.service.Set(ctx, user, p, pusher.KeepOthers)
}

func onCluster(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(redistest.Cluster(t, 3, 1).Addrs(), ","))
}

// A slot gets another master without its keys, as a cluster's repair may do.
func TestAKeyWithoutItsSlotIsFound(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	b := newFixture(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	b.register(alice, bob)
	keySlot, err := b.client.ClusterKeySlot(t.Context(), b.keys.Rules(alice)).Result()
	if err != nil {
		t.Fatal(err)
	}
	slot := int(keySlot)

	// A moving slot is no problem.
	from, err := b.nodeOf(t.Context(), b.keys.Rules(alice))
	if err != nil {
		t.Fatal(err)
	}
	var to *redistest.Server
	for _, master := range servers.Masters() {
		if master.Addr() != from.Options().Addr {
			to = master
		}
	}
	move, err := servers.BeginMove(t.Context(), slot, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := move.MoveKeys(t.Context(), b.keys.Rules(alice)); err != nil {
		t.Fatal(err)
	}
	b.want(exitOK, "check")
	if err := move.MoveRest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := move.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want(exitOK, "check")

	owner, other := to.Client(t), from
	for _, command := range [][]any{{"CLUSTER", "DELSLOTS", slot}} {
		for _, node := range []*redis.Client{owner, other} {
			_ = node.Do(t.Context(), command...).Err()
		}
	}
	if err := other.Do(t.Context(), "CLUSTER", "ADDSLOTS", slot).Err(); err != nil {
		t.Fatal(err)
	}
	if err := other.Do(t.Context(), "CLUSTER", "BUMPEPOCH").Err(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(15 * time.Second)
	for {
		err := owner.Get(t.Context(), b.keys.Rules(alice)).Err()
		if _, moved := redis.IsMovedError(err); moved {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(1500 * time.Millisecond) // clients notice it within a second
	g, rights := guardedOnCluster(t, servers), operations.RightsBelow(t, pushctlACL)
	g.Grant(t, rights)
	for _, r := range []result{b.ctl("check", "-list"), g.as(rights.User, "1 check -list")} {
		if r.status != exitProblems || strings.Count(r.stdout, misplacedKey.name+"\t") != 2 ||
			!strings.Contains(r.stdout, misplacedKey.name+"\t"+b.keys.Rules(alice)+"\t") {
			t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
		}
	}
}

func TestRepairWritesJSON(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.register(alice, bob)
	second := aPusher("second")
	b.do("HSET", b.keys.Pushers(alice), second.Field(), string(second.AppendStored(nil)))
	b.store(bob, "no JSON")
	saved := filepath.Join(t.TempDir(), "saved")
	left := `"unreadable push rules":{"found":1,"repaired":0,"left":1}`
	for _, test := range []struct {
		args  []string
		lines []string
	}{
		{nil, []string{`{"changed":false,"problems":{"pusher missing in the index":{"found":1,"repaired":1,"left":0},` + left + `}}`}},
		{
			[]string{"-yes", "-list", "-save", saved},
			[]string{
				`"outcome":"repaired","problem":"pusher missing in the index","name":"` + string(alice) + `"`, `"outcome":"left, `,
				`{"changed":true,"problems":{"pusher missing in the index":{"found":1,"repaired":1,"left":0},` + left + `},"saved":"` + saved + `"}`,
			},
		},
	} {
		r := b.want(exitProblems, append([]string{"repair", "-json"}, test.args...)...)
		for _, want := range test.lines {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%q: no %s in %s", test.args, want, r.stdout)
			}
		}
		for line := range strings.Lines(r.stdout) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q: %s", test.args, line)
			}
		}
	}
}
