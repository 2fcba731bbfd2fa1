package main

import (
	"context"
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

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

// damage is a problem that somebody makes.
type damage struct {
	name   string
	kind   problemKind
	make   func(*bed)
	left   bool     // whether repair leaves it
	repair []string // flags of the repair beside -yes
}

// damages have each kind of problem that a single server can have.
func damages() []damage {
	field := aPusher(string(alice)).Field()
	digest := aPusher(string(alice)).Digest()
	const mine = `{"rule_id":"mine","default":false,"enabled":true,"conditions":[],"actions":[]}`
	room := `{"rule_id":"!room:example.org","default":false,"enabled":true,"actions":[]}`
	return []damage{
		{name: "no JSON", kind: unreadableEvent, make: func(b *bed) { b.store(alice, "no JSON") }, left: true},
		{name: "no JSON, reset", kind: unreadableEvent, make: func(b *bed) { b.store(alice, "no JSON") }, repair: []string{"-reset-damaged"}},
		{name: "no content", kind: emptyEvent, make: func(b *bed) { b.store(alice, `{"type":"m.push_rules"}`) }},
		{name: "a rule twice", kind: problemKind(pushrule.DuplicateRules), make: func(b *bed) { b.spoil(alice, room, room+","+room) }},
		{
			name: "two rules of one id", kind: problemKind(pushrule.DuplicateRules), left: true,
			make: func(b *bed) {
				b.spoil(alice, room, room+","+strings.Replace(room, `"actions":[]`, `"actions":["notify"]`, 1))
			},
		},
		{name: "a rule above the master rule", kind: problemKind(pushrule.MasterNotFirst), make: func(b *bed) { b.spoil(alice, `"override":[`, `"override":[`+mine+`,`) }},
		{
			name: "a legacy rule", kind: problemKind(pushrule.LegacyRule),
			make: func(b *bed) {
				b.spoil(alice, `"content":[`, `"content":[{"rule_id":".m.rule.contains_user_name","default":true,"enabled":true,"pattern":"alice","actions":[]}`)
			},
		},
		{
			name: "another host's default", kind: problemKind(pushrule.ForeignDefault), left: true,
			make: func(b *bed) {
				b.spoil(alice, `"sender":[`, `"sender":[{"rule_id":".org.example.rule","default":true,"enabled":false,"actions":[]}`)
			},
		},
		{name: "an old default", kind: problemKind(pushrule.StaleDefaults), make: func(b *bed) { b.spoil(alice, "m.room.tombstone", "m.room.grave") }},
		{name: "a pusher that is no JSON", kind: unreadablePushers, make: func(b *bed) { b.do("HSET", b.keys.Pushers(alice), field, secret) }, left: true},
		{
			name: "another pusher that is no JSON", kind: unreadablePushers, repair: []string{"-reset-damaged"},
			make: func(b *bed) { b.do("HSET", b.keys.Pushers(alice), `["x","`+secret+`"]`, secret) },
		},
		{
			name: "a pusher without a claim", kind: pusherNoClaim,
			make: func(b *bed) {
				p := aPusher("2")
				p.Created = 7
				b.do("HSET", b.keys.Pushers(alice), p.Field(), string(p.AppendStored(nil)))
			},
		},
		{name: "lost claims", kind: pusherUnknown, make: func(b *bed) { b.do("DEL", b.keys.Claims(digest)) }},
		{
			name: "a claim that another has", kind: pusherUnknown,
			make: func(b *bed) {
				text := b.client.Get(b.t.Context(), b.keys.Claims(digest)).Val()
				b.do("SET", b.keys.Claims(digest), strings.Replace(text, string(alice), string(bob), 1))
			},
		},
		{name: "claims that are no JSON", kind: unreadableClaims, make: func(b *bed) { b.do("SET", b.keys.Claims(aPusher("x").Digest()), "no JSON") }},
		{
			name: "a claim that was given up", kind: claimGivenUp,
			make: func(b *bed) {
				b.do("SET", b.keys.Claims(aPusher("x").Digest()), `{"claims":{"17":"@bob:example.org"}}`)
			},
		},
		{
			name: "a pusher that should have gone", kind: pusherTooMany,
			make: func(b *bed) {
				p := aPusher("shared")
				b.set(bob, "shared")
				b.set(carol, "shared")
				list, err := b.pushers.Load(b.t.Context(), carol)
				held, _ := list.Pusher(p.Key)
				err = errors.Join(err, b.pushers.Update(b.t.Context(), carol, func(list *pusher.List) error {
					held.Claim.Removes = held.Claim.Number
					list.Set(held)
					return nil
				}))
				if err != nil {
					b.t.Fatal(err)
				}
				b.do("DEL", b.keys.Unsettled())
			},
		},
		{
			name: "pushkeys that nobody settles", kind: unsettledPushkeys,
			make: func(b *bed) { b.do("ZADD", b.keys.Unsettled(), 17, string(digest)) },
		},
		{name: "an event of another type", kind: wrongType, make: func(b *bed) { b.do("RPUSH", b.keys.Rules(carol), "x") }, left: true},
		{name: "pushers of another type", kind: wrongType, make: func(b *bed) { b.do("SET", b.keys.Pushers(carol), "x") }, left: true},
		{
			name: "claims of another type", kind: wrongType, left: true,
			make: func(b *bed) { b.do("DEL", b.keys.Claims(digest)); b.do("RPUSH", b.keys.Claims(digest), "x") },
		},
		{name: "pushers of nobody", kind: unknownKey, make: func(b *bed) { b.do("SET", "pushers:@alice:example.org", "x") }, left: true},
		{name: "a key that is no digest", kind: unknownKey, make: func(b *bed) { b.do("SET", "pushkey:{"+secret+"}", "x") }, left: true},
		{name: "push rules without a hash tag", kind: unknownKey, make: func(b *bed) { b.do("SET", "account_data:@alice:example.org:m.push_rules", "x") }, left: true},
	}
}

func TestEachProblemIsFoundAndRepairedOrLeft(t *testing.T) {
	t.Parallel()
	seen := map[problemKind]bool{misplacedKey: true} // that takes a cluster
	for _, d := range damages() {
		seen[d.kind] = true
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			b := onOne(t)
			b.register(alice, bob)
			b.want(exitOK, "check")
			d.make(b)
			before := b.stored()

			r := b.want(exitProblems, "check", "-list")
			if n := strings.Count(r.stdout, string(d.kind)+"\t"); n != 1 || strings.Contains(r.stdout, "No problems") {
				t.Errorf("found %d times:\n%s", n, r.stdout)
			}
			r = b.want(exitProblems, "repair")
			if !strings.Contains(r.stdout, string(d.kind)) || !maps.Equal(before, b.stored()) {
				t.Errorf("without -yes:\n%s", r.stdout)
			}
			status := exitOK
			if d.left {
				status = exitProblems
			}
			saved := filepath.Join(t.TempDir(), "saved")
			r = b.want(status, append([]string{"repair", "-yes", "-list", "-save", saved}, d.repair...)...)
			if d.left && !maps.Equal(before, b.stored()) {
				t.Errorf("what is left was changed:\n%s", r.stdout)
			}
			if d.kind == unreadableEvent || d.kind == unreadablePushers {
				checkSaved(t, saved)
			}
			if n := b.client.ZCard(t.Context(), b.keys.Unsettled()).Val(); d.kind == pusherTooMany && n != 0 {
				t.Errorf("%d pushkeys are still to be settled", n)
			}
			b.want(status, "check")
		})
	}
	for _, row := range problemKinds() {
		if !seen[row.kind] {
			t.Errorf("no damage makes a %q", row.kind)
		}
	}
}

// checkSaved checks that a file holds what could not be read, for its owner.
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

func TestRepairKeepsWhatUsersChose(t *testing.T) {
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
	b.want(exitOK, "check")
	checkGolden(t, "check-ok.txt", strings.ReplaceAll(b.want(exitOK, "check").stdout, b.where[1], "HOST:PORT"))
	b.spoil(alice, "m.room.tombstone", "m.room.grave")
	b.store(bob, "no JSON")
	b.do("DEL", b.keys.Claims(aPusher(string(alice)).Digest()))
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

func TestAPrefixIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	b := newBed(t, "-redis", server.Addr(), "-key-prefix", `hs[1]*\`)
	other := newBed(t, "-redis", server.Addr(), "-key-prefix", `hs1x\`)
	b.register(alice)
	other.register(alice, bob)
	other.store(bob, "no JSON")
	if r := b.want(exitOK, "check"); !strings.Contains(r.stdout, "  3 keys") {
		t.Error(r.stdout)
	}
	b.do("SET", `hs[1]*\x`, "")
	if r := b.want(exitProblems, "check"); !strings.Contains(r.stdout, "unknown key") {
		t.Error(r.stdout)
	}
}

// TestNoFalseProblems has hosts do all that takes several keys while it checks.
func TestNoFalseProblems(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *bed{"single": onOne, "cluster": onCluster} {
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

// churn does something that a host does.
func (b *bed) churn(ctx context.Context) error {
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

// onCluster returns a bed on a cluster.
func onCluster(t *testing.T) *bed {
	t.Helper()
	return newBed(t, "-redis-mode", "cluster", "-redis", strings.Join(redistest.Cluster(t, 3, 1).Addrs(), ","))
}

// TestAKeyWithoutItsSlotIsFound gives a slot to another master without its keys,
// as a repair of a cluster may.
func TestAKeyWithoutItsSlotIsFound(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, 0)
	b := newBed(t, "-redis-mode", "cluster", "-redis", strings.Join(servers.Addrs(), ","))
	b.register(alice, bob)
	keySlot, err := b.client.ClusterKeySlot(t.Context(), b.keys.Rules(alice)).Result()
	if err != nil {
		t.Fatal(err)
	}
	slot := int(keySlot)

	// A slot that is on its way is no problem.
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
	time.Sleep(1500 * time.Millisecond) // clients learn of it once a second
	name, rules := operatorsUser(t, pushctlACL)
	g := guardedOnCluster(t, name, servers)
	g.grant(rules)
	for _, r := range []result{b.ctl("check", "-list"), g.ctl("check", "-list", "-redis-password-file", g.passwordFile())} {
		if r.status != exitProblems || strings.Count(r.stdout, string(misplacedKey)+"\t"+string(alice)) != 2 {
			t.Errorf("status %d\n%s%s", r.status, r.stdout, r.stderr)
		}
	}
}
