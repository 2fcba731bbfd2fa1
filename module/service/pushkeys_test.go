package service_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
)

const (
	bob   mxid.UserID = "@bob:example.org"
	carol mxid.UserID = "@carol:example.org"
	dave  mxid.UserID = "@dave:example.org"
)

var thePushkey = pusher.Key{AppID: "app", Pushkey: "key"}

type turn struct {
	object string
	writes bool
}

// commutes reports whether two turns have the same effect in both orders. A check between
// them sees the order of two writes.
func (t turn) commutes(u turn, isChecked bool) bool {
	if t.object == u.object || isChecked && t.writes && u.writes {
		return !t.writes && !u.writes
	}
	return true
}

// caller is a request's access to the stores. Wait is called before each turn and may
// fail it.
type caller struct {
	*memory
	wait func(turn) error
}

func take[V any](c caller, t turn, do func() (V, error)) (V, error) {
	var none V
	if err := c.wait(t); err != nil {
		return none, module.Unavailable(err)
	}
	return do()
}

func takeAlone(c caller, t turn, do func() error) error {
	_, err := take(c, t, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (c caller) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	return take(c, turn{string(user), false}, func() (pusher.List, error) {
		return c.memory.Load(ctx, user)
	})
}

func (c caller) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[pusher.List] {
	all := map[mxid.UserID]module.Result[pusher.List]{}
	for _, user := range slices.Sorted(slices.Values(users)) {
		list, err := c.Load(ctx, user)
		all[user] = module.Result[pusher.List]{Value: list, Err: err}
	}
	return all
}

func (c caller) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	return takeAlone(c, turn{string(user), true}, func() error { return c.memory.Update(ctx, user, edit) })
}

func (c caller) Delete(ctx context.Context, user mxid.UserID) error {
	return takeAlone(c, turn{string(user), true}, func() error { return c.memory.Delete(ctx, user) })
}

type callerIndex struct{ caller }

func (c caller) index() callerIndex { return callerIndex{c} }

const (
	claimsTurn  = "the claims"
	pendingTurn = "pending pushkeys"
)

func (c callerIndex) Load(ctx context.Context, key pusher.Digest) (pusher.Claims, error) {
	return take(c.caller, turn{claimsTurn, false}, func() (pusher.Claims, error) { return c.memory.index().Load(ctx, key) })
}

func (c callerIndex) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Claims) error) (pusher.Claims, error) {
	return take(c.caller, turn{claimsTurn, true}, func() (pusher.Claims, error) { return c.memory.index().Update(ctx, key, edit) })
}

func (c callerIndex) MarkPending(ctx context.Context, u module.PendingPushkey) error {
	return takeAlone(c.caller, turn{pendingTurn, true}, func() error { return c.memory.index().MarkPending(ctx, u) })
}

func (c callerIndex) ClearPending(ctx context.Context, u module.PendingPushkey) error {
	return takeAlone(c.caller, turn{pendingTurn, true}, func() error { return c.memory.index().ClearPending(ctx, u) })
}

func (c callerIndex) Pending(ctx context.Context, before time.Time, limit int) ([]module.PendingPushkey, error) {
	return take(c.caller, turn{pendingTurn, false}, func() ([]module.PendingPushkey, error) {
		return c.memory.index().Pending(ctx, before, limit)
	})
}

type request func(ctx context.Context, c caller) error

type running struct {
	next       func() (turn, bool)
	die        func()
	turn       turn
	ended      bool
	died       bool
	turnsTaken int
	err        error
}

// start runs a request up to its first turn.
func start(ctx context.Context, m *memory, r request) *running {
	run := &running{}
	run.next, run.die = iter.Pull(func(yield func(turn) bool) {
		run.err = r(ctx, caller{memory: m, wait: func(t turn) error {
			if run.died || !yield(t) {
				return errDied
			}
			return nil
		}})
	})
	run.goOn()
	return run
}

func (r *running) goOn() {
	t, more := r.next()
	r.turn, r.ended = t, !more
}

// kill ends the request like the death of its process: no later operation reaches the
// stores.
func (r *running) kill() {
	if !r.ended {
		r.died, r.ended = true, true
		r.die()
	}
}

type choice struct {
	player int
	kill   bool
}

// play runs requests to their ends, turn by turn, in the order of choose, and kills up to
// the given number of them. It calls check after every turn, unless it is nil. Played is
// false for an order that is equivalent to another one, because two turns commute.
func play(
	ctx context.Context, m *memory, choose func(int) int, kills int, check func(), requests ...request,
) (runs []*running, played bool) {
	for _, r := range requests {
		runs = append(runs, start(ctx, m, r))
	}
	defer func() {
		for _, run := range runs {
			run.kill() // no effect if it has ended
		}
	}()
	last := choice{-1, false}
	var lastTurn turn
	for slices.ContainsFunc(runs, func(r *running) bool { return !r.ended }) {
		choices := choicesAfter(last, lastTurn, runs, kills, check != nil)
		if len(choices) == 0 {
			return runs, false
		}
		last = choices[choose(len(choices))]
		run := runs[last.player]
		lastTurn = run.turn
		if last.kill {
			run.kill()
			kills--
			last.player = -1
		} else {
			run.goOn()
			run.turnsTaken++
		}
		if check != nil {
			check()
		}
	}
	return runs, true
}

// choicesAfter returns the possible steps after a choice. It kills a request only right
// after one of its turns; later makes no difference.
func choicesAfter(last choice, lastTurn turn, runs []*running, kills int, isChecked bool) (all []choice) {
	for i, run := range runs {
		if run.ended {
			continue
		}
		if i >= last.player || !run.turn.commutes(lastTurn, isChecked) {
			all = append(all, choice{i, false})
		}
		if kills > 0 && (i == last.player || run.turnsTaken == 0 && last.player < 0) {
			all = append(all, choice{i, true})
		}
	}
	return all
}

// maxTries bounds the orders of one test. Requests of ten turns each have more, because a
// race of two turns repeats in every order of the turns around it.
const maxTries = 500

// exhaust calls try until it has made every choice, or maxTries times and then with as
// many random choices, which are the same in every run: the first tries only differ in
// late choices.
func exhaust(try func(choose func(int) int)) {
	var made, of []int
	for range maxTries {
		at := 0
		try(func(n int) int {
			if at == len(made) {
				made, of = append(made, 0), append(of, n)
			}
			at++
			return made[at-1]
		})
		for len(made) > 0 && made[len(made)-1]+1 == of[len(made)-1] {
			made, of = made[:len(made)-1], of[:len(of)-1]
		}
		if len(made) == 0 {
			return
		}
		made[len(made)-1]++
	}
	for seed := range uint64(maxTries) {
		try(rand.New(rand.NewPCG(seed, 0)).IntN)
	}
}

type act struct {
	user mxid.UserID
	verb string
}

// Logging out the tablet removes the pusher that it has set.
const (
	takes      = "takes"   // sets it for themselves
	appends    = "appends" // sets it beside others
	deletes    = "deletes"
	logsOut    = "logs out the tablet"
	dies       = "dies taking"   // before others lose it
	falters    = "dies claiming" // before it is set
	reconciles = "has it reconciled"

	takesByPhone = "takes with the phone"

	imports = "is imported with it"
)

func (a act) String() string {
	name, _, _ := strings.Cut(string(a.user), ":")
	return name[1:] + " " + a.verb
}

func (a act) takes() bool { return a.verb == takes || a.verb == takesByPhone }
func (a act) sets() bool  { return a.takes() || a.verb == appends }

// pusherOf returns a pusher of the key, set by a user's tablet. Its language identifies
// it.
func pusherOf(lang string) pusher.Pusher {
	return pusher.Pusher{Key: thePushkey, Kind: pusher.HTTP, Lang: lang, Device: "TABLET",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`}
}

func usual() service.Options { return service.Options{Policy: policyWithMail()} }

// policyWithMail confirms every email address.
func policyWithMail() pusher.Policy {
	policy := pusher.DefaultPolicy()
	policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
	return policy
}

// clockOf returns the clock of a user's host. The clocks differ by unknown amounts.
func clockOf(user mxid.UserID) func() time.Time {
	ahead := map[mxid.UserID]time.Duration{alice: 11 * time.Minute, bob: -24 * time.Hour, carol: 24 * time.Hour, dave: -11 * time.Minute}
	return func() time.Time { return time.Now().Add(ahead[user]) }
}

func (a act) request(i int) request {
	return func(ctx context.Context, c caller) error {
		stores := module.Stores{Pushers: c, Pushkeys: c.index(), Now: clockOf(a.user)}
		services := service.New(stores, nil, usual()).Pushers()
		switch a.verb {
		case takes:
			return services.Set(ctx, a.user, pusherOf(fmt.Sprint(i)), pusher.RemoveOthers)
		case takesByPhone:
			p := pusherOf(fmt.Sprint(i))
			p.Device = "PHONE"
			return services.Set(ctx, a.user, p, pusher.RemoveOthers)
		case appends:
			return services.Set(ctx, a.user, pusherOf(fmt.Sprint(i)), pusher.KeepOthers)
		case dies:
			return act{a.user, takes}.request(i)(ctx, c.until(beforeReconciling))
		case falters:
			return act{a.user, takes}.request(i)(ctx, c.until(beforeReconciling-2))
		case deletes:
			return services.Delete(ctx, a.user, thePushkey)
		case imports:
			stores.Rules = rulesOf(found(pushrule.Ruleset{}))
			_, err := hostOn(stores, nil, usual()).Import(ctx, a.user, module.Import{Pushers: []pusher.Pusher{pusherOf(fmt.Sprint(i))}}, module.StoreImport)
			return err
		case reconciles:
			return service.New(stores, nil, service.Options{}).Host(nil).ReconcilePushkeys(ctx)
		}
		host := hostOn(stores, nil, usual())
		return host.KeepOnlyDevicePushers(ctx, a.user, "PHONE")
	}
}

func requests(script []act) (all []request) {
	for i, a := range script {
		all = append(all, a.request(i))
	}
	return all
}

// holding has the users with a pusher of the pushkey. The value is true for a user that
// took it from others.
type holding map[mxid.UserID]bool

func (h holding) users() []mxid.UserID { return slices.Sorted(maps.Keys(h)) }

func (a act) on(before holding) holding {
	h := maps.Clone(before)
	switch a.verb {
	case takes, takesByPhone:
		h = holding{a.user: true}
	case appends:
		h[a.user] = before[a.user]
	case deletes, logsOut:
		delete(h, a.user)
	case imports:
		_, has := h[a.user]
		taken := slices.Contains(slices.Collect(maps.Values(h)), true)
		if !has && !taken {
			h[a.user] = false
		}
	}
	return h
}

func (a act) after(owners []mxid.UserID) []mxid.UserID {
	h := holding{}
	for _, owner := range owners {
		h[owner] = false
	}
	return a.on(h).users()
}

func (m *memory) caller() caller { return caller{memory: m, wait: func(turn) error { return nil }} }

// beforeReconciling is the number of turns that set a pusher of a shared key: read the
// claims and the user's pushers, claim, mark pending, store.
const beforeReconciling = 5

// until returns a caller that dies after the given number of turns.
func (c caller) until(turns int) caller {
	wait := c.wait
	c.wait = func(t turn) error {
		if turns--; turns < 0 {
			return errDied
		}
		return wait(t)
	}
	return c
}

// do runs acts one after the other. Acts that do not die must succeed.
func (m *memory) do(t *testing.T, script ...act) {
	t.Helper()
	for i, a := range script {
		if err := a.request(i)(t.Context(), m.caller()); (err == nil) != (a.verb != dies && a.verb != falters) {
			t.Fatalf("%v: %v", a, err)
		}
	}
}

// reconcileAll reconciles pending pushkeys on another host until all claims without a
// pusher count as abandoned, and then once more, to remove them.
func (m *memory) reconcileAll(t *testing.T) {
	t.Helper()
	reconciler := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{}).Host(nil)
	for _, wait := range []time.Duration{0, 11 * time.Minute, time.Minute} {
		time.Sleep(wait)
		if err := reconciler.ReconcilePushkeys(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.Pending) != 0 {
		t.Errorf("still pending: %v", m.Pending)
	}
}

func (m *memory) claimants() []mxid.UserID {
	claims := m.Claims[thePushkey.Digest()]
	return slices.Compact(slices.Sorted(slices.Values(claims.Users())))
}

// has reports whether a user has the pusher that the i-th act of a script set.
func (m *memory) has(user mxid.UserID, i int) bool {
	list := m.Lists[user]
	p, found := list.Pusher(thePushkey)
	return found && p.Lang == fmt.Sprint(i)
}

func (m *memory) wantNamed(t *testing.T) {
	t.Helper()
	named := m.claimants()
	for _, user := range m.owners(thePushkey) {
		if !slices.Contains(named, user) {
			t.Errorf("%s has a pusher, but only %v are named", user, named)
		}
	}
}

// wantCleanIndex accepts, besides the owners, users who died before their pusher was
// stored or after it was removed. The next claim and reconciliation remove them.
func (m *memory) wantCleanIndex(t *testing.T, died []mxid.UserID) {
	t.Helper()
	m.wantNamed(t)
	owners := m.owners(thePushkey)
	for _, user := range m.claimants() {
		if !slices.Contains(owners, user) && !slices.Contains(died, user) {
			t.Errorf("%s is named, but has no pusher", user)
		}
	}
	m.do(t, act{dave, takes})
	m.reconcileAll(t)
	if got := fmt.Sprint(m.owners(thePushkey), m.claimants(), len(m.Pending)); got != fmt.Sprint([]mxid.UserID{dave}, []mxid.UserID{dave}, 0) {
		t.Errorf("after another claim: owners, who is named and how many are pending: %s", got)
	}
}

// scripts omits scripts that only swap users.
func scripts(length int, verbs ...string) (all [][]act) {
	if length == 0 {
		return [][]act{nil}
	}
	users := []mxid.UserID{alice, bob, carol}
	for _, begun := range scripts(length-1, verbs...) {
		known := 0
		for _, a := range begun {
			known = max(known, slices.Index(users, a.user)+1)
		}
		for _, user := range users[:min(known+1, len(users))] {
			for _, verb := range verbs {
				all = append(all, append(slices.Clip(begun), act{user, verb}))
			}
		}
	}
	return all
}

// expectation is the set of possible owners after acts. A user may have stored a pusher
// and died before the removal of others: while this pusher exists, reconciliation may
// remove the others.
type expectation struct {
	owners    []mxid.UserID
	threats   map[mxid.UserID][]mxid.UserID // the threatening users of each owner
	undecided []mxid.UserID                 // possible owners
}

func (e *expectation) see(a act, stored, died bool) {
	if !stored {
		return
	}
	switch {
	case a.verb == takes && died:
		for _, owner := range e.owners {
			if owner != a.user {
				e.threats[owner] = append(slices.Clip(e.threats[owner]), a.user)
			}
		}
	case a.verb == takes:
		e.threats, e.undecided = map[mxid.UserID][]mxid.UserID{}, nil
	}
	if a.verb == takes && died {
		e.owners = act{a.user, appends}.after(e.owners)
	} else {
		e.owners = a.after(e.owners)
	}
	delete(e.threats, a.user)
	e.undecided = slices.DeleteFunc(e.undecided, func(u mxid.UserID) bool { return u == a.user })
	if a.sets() {
		return
	}
	for owner, by := range e.threats {
		by = slices.DeleteFunc(slices.Clone(by), func(u mxid.UserID) bool { return u == a.user })
		if len(by) == 0 && slices.Contains(e.owners, owner) {
			e.undecided = append(e.undecided, owner)
			delete(e.threats, owner)
		} else {
			e.threats[owner] = by
		}
	}
}

func (e *expectation) allows(owners []mxid.UserID) bool {
	for _, user := range []mxid.UserID{alice, bob, carol} {
		want := slices.Contains(e.owners, user) && len(e.threats[user]) == 0
		if slices.Contains(owners, user) != want && !slices.Contains(e.undecided, user) {
			return false
		}
	}
	return true
}

// Each test runs three requests one after the other, and kills up to two of them at every
// step.
func TestReconciliationLeavesOneOwnerAfterAnyDeath(t *testing.T) {
	t.Parallel()
	length := 3
	if testing.Short() {
		length = 2
	}
	for _, script := range scripts(length, takes, appends, deletes) {
		t.Run(fmt.Sprint(script), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exhaust(func(choose func(int) int) {
					if !t.Failed() {
						playScript(t, newMemory(), script, choose)
					}
				})
			})
		})
	}
}

func TestWithoutDeathsNothingIsPending(t *testing.T) {
	t.Parallel()
	for _, script := range scripts(3, takes, appends, deletes, imports) {
		m, held := newMemory(), holding{}
		for i, a := range script {
			m.do(t, a)
			held = a.on(held)
			want, claims := held.users(), m.Claims[thePushkey.Digest()]
			if got := m.owners(thePushkey); !slices.Equal(got, want) || !slices.Equal(m.claimants(), want) {
				t.Errorf("%v: owned by %v, the index names %v, want %v", script[:i+1], got, m.claimants(), want)
			}
			if len(claims.Owners()) != len(want) || len(m.Pending) != 0 {
				t.Errorf("%v: there are the claims %v, and pending are %v", script[:i+1], claims.Owners(), m.Pending)
			}
		}
	}
}

func playScript(t *testing.T, m *memory, script []act, choose func(int) int) {
	t.Helper()
	kills := 2
	expected := expectation{threats: map[mxid.UserID][]mxid.UserID{}}
	var died []mxid.UserID
	var told []string
	for i, a := range script {
		before := slices.Clone(m.owners(thePushkey))
		runs, _ := play(t.Context(), m, choose, kills, func() { m.wantNamed(t) }, a.request(i))
		run := runs[0]
		told = append(told, fmt.Sprintf("%v (%d turns, died %t)", a, run.turnsTaken, run.died))
		stored := m.has(a.user, i)
		if !a.sets() {
			stored = !slices.Contains(m.owners(thePushkey), a.user) && slices.Contains(before, a.user)
		}
		if run.died {
			kills--
			died = append(died, a.user)
		} else if run.err != nil || a.sets() && !stored {
			t.Errorf("%v: error %v, stored %t", told, run.err, stored)
		}
		expected.see(a, stored, run.died)
		if !run.died && a.verb == takes && !slices.Equal(m.owners(thePushkey), []mxid.UserID{a.user}) {
			t.Errorf("%v: owned by %v at once", told, m.owners(thePushkey))
		}
		time.Sleep(time.Second)
	}
	m.reconcileAll(t)
	if owners := m.owners(thePushkey); !expected.allows(owners) {
		t.Errorf("%v: owned by %v, want %+v", told, owners, expected)
	}
	m.wantCleanIndex(t, died)
	if t.Failed() {
		t.Log(told)
	}
}

// outcomes adds to all the possible owners after concurrent acts. Acts that died may
// count or not.
func outcomes(all map[string]bool, before holding, script []act, runs []*running) {
	var order func(now holding, left []int)
	order = func(now holding, left []int) {
		if len(left) == 0 {
			all[fmt.Sprint(now.users())] = true
		}
		for at, i := range left {
			rest := slices.Delete(slices.Clone(left), at, at+1)
			order(script[i].on(now), rest)
			if runs[i].died {
				order(now, rest)
			}
		}
	}
	var left []int
	for i := range script {
		left = append(left, i)
	}
	order(before, left)
}

// scenario is a set of concurrent acts after a sequence of earlier acts.
type scenario struct{ before, script []act }

func (s scenario) String() string { return fmt.Sprint(s.script, " after ", s.before) }

// holdings returns the possible holders before the script: if two users took the pushkey
// in sequence and the second died, either may own it.
func (s scenario) holdings() (all []holding) {
	all = []holding{{}}
	for _, a := range s.before {
		for i, before := range all {
			if a.verb == dies {
				all = append(all, act{a.user, takes}.on(before))
			} else {
				all[i] = a.on(before)
			}
		}
	}
	return all
}

func (s scenario) play(t *testing.T, m *memory, choose func(int) int, kills int) (played bool) {
	t.Helper()
	m.do(t, s.before...)
	time.Sleep(time.Hour)
	runs, played := play(t.Context(), m, choose, kills, func() { m.wantNamed(t) }, requests(s.script)...)
	if !played {
		return false
	}
	allowed := map[string]bool{}
	for _, before := range s.holdings() {
		outcomes(allowed, before, s.script, runs)
	}
	var died []mxid.UserID
	for i, run := range runs {
		if run.died {
			died = append(died, s.script[i].user)
		} else if run.err != nil {
			t.Errorf("%v: error %v", s.script[i], run.err)
		}
	}
	reconciled := !slices.ContainsFunc(s.before, func(a act) bool { return a.verb == dies })
	if got := m.owners(thePushkey); reconciled && len(died) == 0 && !allowed[fmt.Sprint(got)] {
		t.Errorf("owned by %v, want one of %v", got, allowed)
	}
	m.reconcileAll(t)
	if got := m.owners(thePushkey); !allowed[fmt.Sprint(got)] {
		t.Errorf("owned by %v after the reconciliation, want one of %v", got, allowed)
	}
	for _, a := range s.before {
		if a.verb == falters {
			died = append(died, a.user)
		}
	}
	m.wantCleanIndex(t, died)
	return true
}

func (s scenario) playAll(t *testing.T, kills int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		played := 0
		exhaust(func(choose func(int) int) {
			if !t.Failed() && s.play(t, newMemory(), choose, kills) {
				played++
			}
		})
		t.Logf("%d orders", played)
	})
}

func takenBy(user mxid.UserID) []act { return []act{{user, takes}} }

var smallScenarios = []scenario{
	{nil, []act{{alice, takes}, {bob, takes}}},
	{nil, []act{{alice, takes}, {bob, appends}}},
	{nil, []act{{alice, appends}, {bob, appends}}},
	{nil, []act{{alice, takes}, {alice, takes}}},
	{nil, []act{{alice, takes}, {alice, appends}}},
	{nil, []act{{alice, takes}, {alice, deletes}}},
	{takenBy(carol), []act{{alice, takes}, {carol, takes}}},
	{takenBy(carol), []act{{alice, takes}, {carol, appends}}},
	{takenBy(carol), []act{{alice, appends}, {carol, takes}}},
	{takenBy(carol), []act{{alice, appends}, {carol, appends}}},
	{takenBy(carol), []act{{alice, takes}, {carol, deletes}}},
	{takenBy(carol), []act{{alice, takes}, {alice, logsOut}}},
	{[]act{{alice, takes}, {bob, appends}}, []act{{alice, takes}, {alice, deletes}}},
	{[]act{{alice, takes}, {bob, appends}}, []act{{alice, takes}, {bob, logsOut}}},
	{[]act{{alice, takes}, {bob, dies}}, []act{{alice, appends}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, dies}}, []act{{alice, takes}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, dies}, {alice, falters}}, []act{{alice, appends}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, falters}}, []act{{alice, takes}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, dies}}, []act{{carol, takes}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, dies}}, []act{{bob, deletes}, {bob, reconciles}}},
	{[]act{{alice, takes}, {bob, dies}}, []act{{alice, reconciles}, {bob, reconciles}}},
}

var largeScenarios = []scenario{
	{takenBy(carol), []act{{alice, takes}, {bob, takes}}},
	{takenBy(carol), []act{{alice, takes}, {alice, takes}}},
	{takenBy(carol), []act{{alice, takes}, {alice, appends}}},
}

var importScenarios = []scenario{
	{nil, []act{{alice, imports}, {bob, imports}}},
	{nil, []act{{alice, imports}, {alice, imports}}},
	{nil, []act{{alice, imports}, {bob, takes}}},
	{nil, []act{{alice, imports}, {bob, appends}}},
	{nil, []act{{alice, imports}, {alice, takes}}},
	{takenBy(carol), []act{{alice, imports}}},
	{takenBy(carol), []act{{alice, imports}, {carol, takes}}},
	{takenBy(carol), []act{{alice, imports}, {carol, deletes}}},
	{takenBy(carol), []act{{alice, imports}, {bob, takes}}},
	{[]act{{carol, imports}}, []act{{alice, imports}, {carol, takes}}},
	{[]act{{carol, appends}, {carol, takes}}, []act{{alice, imports}, {bob, imports}}},
	{[]act{{carol, imports}, {carol, takes}}, []act{{alice, imports}}},
	{[]act{{carol, imports}, {bob, imports}}, []act{{alice, takes}, {bob, deletes}}},
	{[]act{{carol, imports}, {bob, imports}}, []act{{alice, appends}, {bob, takes}}},
}

func TestInEveryOrderTheLastClaimGetsThePushkey(t *testing.T) {
	t.Parallel()
	for _, s := range slices.Concat(smallScenarios, largeScenarios) {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.playAll(t, 0)
		})
	}
}

func TestAnyConcurrentRequestMayDie(t *testing.T) {
	t.Parallel()
	for _, s := range smallScenarios {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.playAll(t, 1)
		})
	}
}

func TestAnImportedPusherLosesItsPushkeyToAnyLaterClaim(t *testing.T) {
	t.Parallel()
	for _, s := range importScenarios {
		for kills := range 2 {
			t.Run(fmt.Sprintf("%v, %d die", s, kills), func(t *testing.T) {
				t.Parallel()
				s.playAll(t, kills)
			})
		}
	}
}

// These scenarios have too many orders for playAll.
func TestManyConcurrentUsers(t *testing.T) {
	t.Parallel()
	const orders = 200
	crowds := []scenario{
		{[]act{{alice, takes}, {bob, appends}}, []act{{alice, takes}, {bob, takes}}},
		{[]act{{alice, takes}, {bob, appends}}, []act{{alice, appends}, {bob, takes}}},
		{nil, []act{{alice, takes}, {bob, takes}, {carol, takes}}},
		{takenBy(dave), []act{{alice, takes}, {bob, takes}, {carol, takes}}},
		{takenBy(dave), []act{{alice, takes}, {bob, appends}, {dave, deletes}}},
		{takenBy(dave), []act{{alice, takes}, {bob, appends}, {dave, logsOut}}},
		{takenBy(dave), []act{{alice, takes}, {alice, appends}, {alice, deletes}}},
		{takenBy(dave), []act{{alice, takes}, {alice, takes}, {dave, takes}}},
		{[]act{{alice, takes}, {bob, appends}}, []act{{alice, takes}, {bob, appends}, {bob, deletes}}},
		{[]act{{alice, takes}, {bob, appends}}, []act{{alice, appends}, {bob, appends}, {carol, takes}}},
		{[]act{{alice, takes}, {bob, dies}}, []act{{alice, takes}, {bob, appends}, {carol, reconciles}}},
		{nil, []act{{alice, imports}, {bob, imports}, {carol, takes}}},
		{takenBy(dave), []act{{alice, imports}, {bob, takes}, {dave, deletes}}},
	}
	for _, s := range slices.Concat(largeScenarios, crowds) {
		for kills := range 3 {
			t.Run(fmt.Sprintf("%v, %d die", s, kills), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					for seed := range uint64(orders) {
						random := rand.New(rand.NewPCG(seed, uint64(kills)))
						m := newMemory()
						if s.play(t, m, random.IntN, kills); t.Failed() {
							t.Fatalf("seed %d", seed)
						}
					}
				})
			})
		}
	}
}

// A user appends a pusher with an earlier claim after the deletion of the pusher that
// took the pushkey.
func TestTakingAPushkeyDoesNotRemoveTheUsersOwnPusher(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.do(t, act{carol, takes})
	var runs []*running
	for i, a := range []act{{alice, appends}, {alice, takes}, {alice, deletes}} {
		runs = append(runs, start(t.Context(), m, a.request(i)))
	}
	for _, step := range []struct{ player, turns int }{
		{0, beforeReconciling - 2}, {1, beforeReconciling}, {2, 2}, {0, 1}, {1, 100}, {0, 100},
	} {
		for run := runs[step.player]; step.turns > 0 && !run.ended; step.turns-- {
			run.goOn()
		}
	}
	for i, run := range runs {
		if !run.ended || run.err != nil {
			t.Errorf("request %d: ended %t, error %v", i, run.ended, run.err)
		}
	}
	if owners := m.owners(thePushkey); !slices.Equal(owners, []mxid.UserID{alice}) {
		t.Errorf("owned by %v, want what was appended last", owners)
	}
}

func TestAPusherOverALimitLeavesNoClaim(t *testing.T) {
	t.Parallel()
	another := pusherOf("en")
	another.Pushkey = "another"
	for name, test := range map[string]struct {
		before  []act
		request act
		refused bool
	}{
		"a third who shares":            {[]act{{alice, takes}, {bob, appends}}, act{carol, appends}, true},
		"a third who takes it alone":    {[]act{{alice, takes}, {bob, appends}}, act{carol, takes}, false},
		"one of two again":              {[]act{{alice, takes}, {bob, appends}}, act{alice, appends}, false},
		"one of two alone":              {[]act{{alice, takes}, {bob, appends}}, act{alice, takes}, false},
		"one pusher too many":           {nil, act{dave, takes}, true},
		"one too many, shared":          {takenBy(alice), act{dave, appends}, true},
		"one too many, taken of others": {takenBy(alice), act{dave, takes}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				m.do(t, test.before...)
				options := usual()
				options.Policy.MaxSharers, options.Policy.MaxPushers = 2, 1
				services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, options).Pushers()
				if err := services.Set(t.Context(), dave, another, pusher.RemoveOthers); err != nil {
					t.Fatal(err)
				}
				want := scenario{before: test.before}.holdings()[0].users()
				others := map[string]pusher.Others{takes: pusher.RemoveOthers, appends: pusher.KeepOthers}[test.request.verb]
				err := services.Set(t.Context(), test.request.user, pusherOf("de"), others)
				if !test.refused {
					want = test.request.after(want)
				}
				if (err != nil) != test.refused || test.refused && fault.KindOf(err) != fault.InvalidParam {
					t.Errorf("got error %v", err)
				}
				if got := fmt.Sprint(m.owners(thePushkey), m.claimants()); got != fmt.Sprint(want, want) {
					t.Errorf("owners and claimants: %s, want twice %v", got, want)
				}
				m.reconcileAll(t)
			})
		})
	}
}

// The clock stands still. Clients do not see the time of a set.
func TestEverySetOfAPusherIsDistinct(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, others := range []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers} {
			m := newMemory()
			old := pusherOf("en")
			old.Claim = pusher.RemoveOthers.Claim(7) // stored without a time
			m.Lists[alice] = pusher.NewList(old)
			claims := pusher.NewClaims(pusher.Owner{User: alice, Claim: 7})
			m.Claims[thePushkey.Digest()] = claims
			services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usual()).Pushers()
			var last int64
			for i, user := range []mxid.UserID{alice, alice, bob, alice, alice} {
				if err := services.Set(t.Context(), user, pusherOf("en"), others); err != nil {
					t.Fatal(err)
				}
				list := m.Lists[alice]
				p, found := list.Pusher(thePushkey)
				switch {
				case user == bob: // may have removed alice's
					time.Sleep(time.Millisecond)
				case !found || p.SetAt <= last || p.SetAt < time.Now().UnixMicro():
					t.Errorf("%s, set %d: found %t, set at %d after %d", others, i, found, p.SetAt, last)
				case strings.Contains(string(p.AppendJSON(nil)), fmt.Sprint(p.SetAt)):
					t.Errorf("clients see %s", p.AppendJSON(nil))
				}
				if found {
					last = p.SetAt
				}
			}
		}
	})
}

type countingObserver struct {
	observe.Observer
	operations *int
}

func (o countingObserver) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	*o.operations++
	return o.Observer.Begin(ctx, op)
}

func TestClaimsHaveTheTimeOfTheStores(t *testing.T) {
	t.Parallel()
	now := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	for name, observer := range map[string]observe.Observer{"alone": nil, "observed": countingObserver{observe.None, new(int)}} {
		m, options := newMemory(), usual()
		options.Observer = observer
		stores := module.Stores{Pushers: m, Pushkeys: m.index(), Now: func() time.Time { return now }}
		if err := service.New(stores, nil, options).Pushers().Set(t.Context(), alice, pusherOf("en"), pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
		list := m.Lists[alice]
		if p, found := list.Pusher(thePushkey); !found || p.Claim.Number != now.UnixMicro() || p.SetAt != now.UnixMicro() {
			t.Errorf("%s: found %t, claim %d, set at %d, want %d", name, found, p.Claim.Number, p.SetAt, now.UnixMicro())
		}
		if o, is := observer.(countingObserver); is && *o.operations == 0 {
			t.Error("nothing was observed")
		}
	}
}
