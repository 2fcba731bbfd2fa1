package service_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	err := c.wait(t)
	if err == nil {
		return do()
	}
	if err == errLostReply {
		_, _ = do()
	}
	return none, module.Unavailable(err)
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

const entryTurn = "the entry"

func (c callerIndex) Load(ctx context.Context, key pusher.Digest) (pusher.Entry, error) {
	return take(c.caller, turn{entryTurn, false}, func() (pusher.Entry, error) { return c.memory.index().Load(ctx, key) })
}

func (c callerIndex) LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]module.Result[pusher.Entry] {
	all := map[pusher.Digest]module.Result[pusher.Entry]{}
	for _, key := range keys {
		entry, err := c.Load(ctx, key)
		all[key] = module.Result[pusher.Entry]{Value: entry, Err: err}
	}
	return all
}

func (c callerIndex) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (pusher.Entry, error) {
	return take(c.caller, turn{entryTurn, true}, func() (pusher.Entry, error) {
		var before pusher.Entry
		after, err := c.memory.index().Update(ctx, key, func(e *pusher.Entry) error {
			before = *e
			return edit(e)
		})
		if err == nil && key == thePushkey.Digest() {
			c.see(before, after)
		}
		return after, err
	})
}

// see records who has lost the pushkey, until they claim it again.
func (m *memory) see(before, after pusher.Entry) {
	m.Lock()
	defer m.Unlock()
	for _, user := range before.Lost(after) {
		m.dead[user] = before.Last
	}
	if len(after.Users) > 0 && after.Last != before.Last {
		delete(m.dead, after.Users[0])
	}
}

type request func(ctx context.Context, c caller) error

// running is a request in a bubble of synctest. It may wait for several turns, side by side.
type running struct {
	mu      sync.Mutex
	waiting []waiter // sorted

	ended      bool
	died       bool
	turnsTaken int
	err        error
}

type waiter struct {
	turn turn
	goOn chan error
}

// start runs a request up to its first turn.
func start(ctx context.Context, m *memory, r request) *running {
	run := &running{}
	go func() {
		err := r(ctx, caller{memory: m, wait: run.wait})
		run.mu.Lock()
		defer run.mu.Unlock()
		run.err, run.ended = err, true
	}()
	run.rest()
	return run
}

func (r *running) wait(t turn) error {
	w := waiter{t, make(chan error)}
	r.mu.Lock()
	if r.died {
		r.mu.Unlock()
		return errDied
	}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	return <-w.goOn
}

// rest waits until the request waits for its turns, or has ended.
func (r *running) rest() {
	synctest.Wait()
	slices.SortFunc(r.waiting, func(a, b waiter) int { return strings.Compare(a.turn.object, b.turn.object) })
}

// goOn takes one of the turns that the request waits for.
func (r *running) goOn(n int) turn { return r.answer(n, nil) }

// answer takes one of the turns that the request waits for, or fails it.
func (r *running) answer(n int, failed error) turn {
	w := r.waiting[n]
	r.waiting = slices.Delete(r.waiting, n, n+1)
	w.goOn <- failed
	r.turnsTaken++
	r.rest()
	return w.turn
}

// kill ends the request like the death of its process: no later operation reaches the
// stores.
func (r *running) kill() {
	if r.ended {
		return
	}
	r.mu.Lock()
	r.died = true
	r.mu.Unlock()
	for _, w := range r.waiting {
		w.goOn <- errDied
	}
	synctest.Wait()
}

type choice struct {
	player, turn int
	kill         bool
}

// play runs requests to their ends, turn by turn, in the order of choose, and kills up to
// the given number of them. It calls check after every turn, unless it is nil. Played is
// false for an order that is equivalent to another one, because two turns commute. The
// caller is in a bubble of synctest.
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
	last := choice{player: -1}
	var lastTurn turn
	for slices.ContainsFunc(runs, func(r *running) bool { return !r.ended }) {
		choices := choicesAfter(last, lastTurn, runs, kills, check != nil)
		if len(choices) == 0 {
			return runs, false
		}
		last = choices[choose(len(choices))]
		run := runs[last.player]
		if last.kill {
			run.kill()
			kills--
			last.player = -1
		} else {
			lastTurn = run.goOn(last.turn)
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
		for n, w := range run.waiting {
			if i >= last.player || !w.turn.commutes(lastTurn, isChecked) {
				all = append(all, choice{i, n, false})
			}
		}
		if kills > 0 && (i == last.player || run.turnsTaken == 0 && last.player < 0) {
			all = append(all, choice{i, 0, true})
		}
	}
	return all
}

// maxTries bounds the orders of one test. Requests of ten turns each have more, because a
// race of two turns repeats in every order of the turns around it.
func maxTries() int {
	if testing.Short() {
		return 50
	}
	return 500
}

// exhaust calls try until it has made every choice, or maxTries times and then with as
// many random choices, which are the same in every run: the first tries only differ in
// late choices.
func exhaust(try func(choose func(int) int)) {
	var made, of []int
	for range maxTries() {
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
	for seed := range uint64(maxTries()) {
		try(rand.New(rand.NewPCG(seed, 0)).IntN)
	}
}

type act struct {
	user mxid.UserID
	verb string
}

// Logging out the tablet removes the pusher that it has set.
const (
	takes   = "takes"   // sets it for themselves
	appends = "appends" // sets it beside others
	deletes = "deletes"
	logsOut = "logs out the tablet"
	falters = "dies taking" // others have lost it, and the pusher is not stored

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

// clockOf returns the clock of a user's host. The clocks differ by less than the time after
// which an entry expires.
func clockOf(user mxid.UserID) func() time.Time {
	ahead := map[mxid.UserID]time.Duration{alice: 4 * time.Minute, bob: -5 * time.Minute, carol: 5 * time.Minute, dave: -4 * time.Minute}
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
		case falters:
			return act{a.user, takes}.request(i)(ctx, c.until(beforeStoring))
		case deletes:
			return services.Delete(ctx, a.user, thePushkey)
		case imports:
			stores.Rules = rulesOf(found(pushrule.Ruleset{}))
			_, err := hostOn(stores, nil, usual()).Import(ctx, a.user, module.Import{Pushers: []pusher.Pusher{pusherOf(fmt.Sprint(i))}}, module.StoreImport)
			return err
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
	case falters:
		_, has := before[a.user]
		if h = (holding{}); has {
			h[a.user] = true // the old pusher stays
		}
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

// afterDeath returns the possible holders if the request of the act has died.
func (a act) afterDeath(before holding) []holding {
	all := []holding{before, a.on(before)}
	if a.takes() {
		all = append(all, act{a.user, falters}.on(before))
	}
	return all
}

func (m *memory) caller() caller { return caller{memory: m, wait: func(turn) error { return nil }} }

// beforeStoring is the number of turns of a set before it stores the pusher: it reads the
// user's pushers and the entry, and changes the entry.
const beforeStoring = 3

// beforeRemoving is the number of turns of a set before it removes others' pushers.
const beforeRemoving = beforeStoring + 1

// until returns a caller that dies after the given number of turns.
func (c caller) until(turns int) caller {
	wait, left := c.wait, atomic.Int64{}
	left.Store(int64(turns))
	c.wait = func(t turn) error {
		if left.Add(-1) < 0 {
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
		if err := a.request(i)(t.Context(), m.caller()); (err == nil) != (a.verb != falters) {
			t.Fatalf("%v: %v", a, err)
		}
	}
}

// has reports whether a user has the pusher that the i-th act of a script set.
func (m *memory) has(user mxid.UserID, i int) bool {
	list := m.Lists[user]
	p, found := list.Pusher(thePushkey)
	return found && p.Lang == fmt.Sprint(i)
}

// wantClean checks that only visible pushers are stored, unless a request has died or has
// waited while another user took the pushkey, and that the next to take the pushkey is its
// only owner.
func (m *memory) wantClean(t *testing.T, mayLeaveHidden bool) {
	t.Helper()
	if owners, stored := m.owners(thePushkey), m.stored(thePushkey); !mayLeaveHidden && !slices.Equal(stored, owners) {
		t.Errorf("owned by %v, stored for %v", owners, stored)
	}
	m.do(t, act{dave, takes})
	if got := m.owners(thePushkey); !slices.Equal(got, []mxid.UserID{dave}) {
		t.Errorf("taken by dave, owned by %v", got)
	}
	m.do(t, act{dave, deletes})
	if got := m.owners(thePushkey); len(got) > 0 {
		t.Errorf("deleted by dave, owned by %v", got)
	}
	m.wantNoneTaken(t)
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

// Each test runs three requests one after the other, and kills up to two of them at every
// step.
func TestAPushkeyHasTheRightOwnersAfterAnyDeath(t *testing.T) {
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

func TestSequencesLeaveExactlyTheOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, script := range scripts(3, takes, appends, deletes, imports) {
			m, held := newMemory(), holding{}
			for i, a := range script {
				m.do(t, a)
				held = a.on(held)
				if got, stored := m.owners(thePushkey), m.stored(thePushkey); !slices.Equal(got, held.users()) || !slices.Equal(stored, got) {
					t.Errorf("%v: owned by %v, stored for %v, want %v", script[:i+1], got, stored, held.users())
				}
			}
			m.wantClean(t, false)
		}
	})
}

func playScript(t *testing.T, m *memory, script []act, choose func(int) int) {
	t.Helper()
	kills := 2
	possible := []holding{{}}
	var told []string
	for i, a := range script {
		runs, _ := play(t.Context(), m, choose, kills, func() { m.wantNoneTaken(t) }, a.request(i))
		run := runs[0]
		told = append(told, fmt.Sprintf("%v (%d turns, died %t)", a, run.turnsTaken, run.died))
		var after []holding
		for _, before := range possible {
			if run.died {
				after = append(after, a.afterDeath(before)...)
			} else {
				after = append(after, a.on(before))
			}
		}
		owners := m.owners(thePushkey)
		possible = slices.DeleteFunc(after, func(h holding) bool { return !slices.Equal(h.users(), owners) })
		if run.died {
			kills--
		} else if run.err != nil || a.sets() && !m.has(a.user, i) {
			t.Errorf("%v: error %v, stored %t", told, run.err, m.has(a.user, i))
		}
		if len(possible) == 0 {
			t.Errorf("%v: owned by %v", told, owners)
			return
		}
		time.Sleep(time.Second)
	}
	m.wantClean(t, kills < 2)
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
			if !runs[i].died {
				order(script[i].on(now), rest)
				continue
			}
			for _, then := range script[i].afterDeath(now) {
				order(then, rest)
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

// before returns the holders before the script.
func (s scenario) holding() holding {
	h := holding{}
	for _, a := range s.before {
		h = a.on(h)
	}
	return h
}

func (s scenario) play(t *testing.T, m *memory, choose func(int) int, kills int) (played bool) {
	t.Helper()
	m.do(t, s.before...)
	time.Sleep(time.Hour)
	runs, played := play(t.Context(), m, choose, kills, func() { m.wantNoneTaken(t) }, requests(s.script)...)
	if !played {
		return false
	}
	allowed := map[string]bool{}
	outcomes(allowed, s.holding(), s.script, runs)
	for i, run := range runs {
		if !run.died && run.err != nil {
			t.Errorf("%v: error %v", s.script[i], run.err)
		}
	}
	if got := m.owners(thePushkey); !allowed[fmt.Sprint(got)] {
		t.Errorf("owned by %v, want one of %v", got, allowed)
	}
	m.wantClean(t, true)
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
	{[]act{{alice, takes}, {bob, falters}}, []act{{alice, appends}, {bob, takes}}},
	{[]act{{alice, takes}, {bob, falters}}, []act{{alice, takes}, {bob, deletes}}},
	{[]act{{alice, takes}, {bob, falters}, {alice, falters}}, []act{{alice, appends}, {bob, appends}}},
	{[]act{{alice, takes}, {bob, takes}}, []act{{alice, deletes}, {bob, deletes}}},
	{[]act{{alice, takes}, {bob, takes}}, []act{{alice, appends}, {bob, deletes}}},
	{[]act{{alice, takes}, {bob, takes}}, []act{{alice, logsOut}, {carol, takes}}},
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
		{[]act{{alice, takes}, {bob, falters}}, []act{{alice, takes}, {bob, appends}, {carol, deletes}}},
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

func TestAPusherOverALimitLeavesNoNumber(t *testing.T) {
	t.Parallel()
	another := pusherOf("en")
	another.Pushkey = "another"
	for name, test := range map[string]struct {
		before []act
		others pusher.Others
	}{
		"one pusher too many":           {nil, pusher.RemoveOthers},
		"one too many, shared":          {takenBy(alice), pusher.KeepOthers},
		"one too many, taken of others": {takenBy(alice), pusher.RemoveOthers},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				m.do(t, test.before...)
				options := usual()
				options.Policy.MaxPushers = 1
				services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, options).Pushers()
				if err := services.Set(t.Context(), dave, another, pusher.RemoveOthers); err != nil {
					t.Fatal(err)
				}
				entry := m.Entries[thePushkey.Digest()]
				err := services.Set(t.Context(), dave, pusherOf("de"), test.others)
				if after := m.Entries[thePushkey.Digest()]; fault.KindOf(err) != fault.InvalidParam || !after.Equal(entry) {
					t.Errorf("got error %v, the entry is %+v", err, after)
				}
			})
		})
	}
}

// Others have taken alice's pushers, and their requests have died before they removed them.
func TestHiddenPushersLeaveRoom(t *testing.T) {
	t.Parallel()
	m, options := newMemory(), usual()
	options.Policy.MaxPushers = 2
	services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, options).Pushers()
	set := func(key string) error {
		p := pusherOf("en")
		p.Pushkey = key
		return services.Set(t.Context(), alice, p, pusher.RemoveOthers)
	}
	for i := range 10 {
		p := pusherOf("en")
		p.Pushkey = fmt.Sprint(i)
		if err := set(p.Pushkey); err != nil {
			t.Fatalf("pusher %d: %v", i, err)
		}
		dying := m.caller().until(beforeRemoving)
		bobs := service.New(module.Stores{Pushers: dying, Pushkeys: dying.index()}, nil, options).Pushers()
		if err := bobs.Set(t.Context(), mxid.UserID(fmt.Sprintf("@bob%d:example.org", i/2)), p, pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
		if len(m.stored(p.Key)) != 2 || len(m.owners(p.Key)) != 1 {
			t.Errorf("pusher %d: stored for %v, owned by %v", i, m.stored(p.Key), m.owners(p.Key))
		}
	}
	if err := set("visible"); err != nil {
		t.Error(err)
	}
	if err := set("visible, too"); err != nil {
		t.Error(err)
	}
	if err := set("one too many"); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("got %v", err)
	}
}

// The clock stands still. Clients do not see the time of a set.
func TestEverySetOfAPusherIsDistinct(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, others := range []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers} {
			m := newMemory()
			old := pusherOf("en")
			old.Claim = 7 // stored without a time
			m.Lists[alice] = pusher.NewList(old)
			m.Entries[thePushkey.Digest()] = pusher.Entry{Last: 7, Taken: 7, By: alice, Users: []mxid.UserID{alice}}
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
	operations *atomic.Int64
}

func (o countingObserver) Begin(ctx context.Context, op *observe.Operation) (context.Context, func(observe.Outcome)) {
	o.operations.Add(1)
	return o.Observer.Begin(ctx, op)
}

// lateIndex calls late before it reads entries, once.
type lateIndex struct {
	module.PushkeyIndex
	late func()
}

func (l *lateIndex) LoadMany(ctx context.Context, keys []pusher.Digest) map[pusher.Digest]module.Result[pusher.Entry] {
	if late := l.late; late != nil {
		l.late = nil
		late()
	}
	return l.PushkeyIndex.LoadMany(ctx, keys)
}

// A list is as it was at one moment, although its entries are read after it. Here a pusher is set again, another one
// is added, and the first one is removed or taken, between both reads.
func TestAListIsOfOneMoment(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(context.Context, module.PusherService) error{
		"removed": func(ctx context.Context, s module.PusherService) error { return s.Delete(ctx, alice, thePushkey) },
		"taken": func(ctx context.Context, s module.PusherService) error {
			return s.Set(ctx, bob, pusherOf("en"), pusher.RemoveOthers)
		},
	} {
		m := newMemory()
		index := &lateIndex{PushkeyIndex: m.index()}
		pushers := service.New(module.Stores{Pushers: m, Pushkeys: index}, nil, usual()).Pushers()
		set := func(key, lang string) {
			p := pusherOf(lang)
			p.Pushkey = key
			if err := pushers.Set(t.Context(), alice, p, pusher.RemoveOthers); err != nil {
				t.Fatal(err)
			}
		}
		set(thePushkey.Pushkey, "en")
		set("second", "en")
		index.late = func() {
			if err := pushers.Delete(t.Context(), alice, thePushkey); err != nil {
				t.Fatal(err)
			}
			set(thePushkey.Pushkey, "de")
			set("third", "en")
			if err := lose(t.Context(), pushers); err != nil {
				t.Fatal(err)
			}
		}
		list, err := pushers.List(t.Context(), alice)
		var got []string
		for _, p := range list.All() {
			got = append(got, p.Pushkey)
		}
		if err != nil || !slices.Equal(got, []string{"second", "third"}) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

// pausedIndex and pausedPushers wait before a change, once.
type pausedIndex struct {
	module.PushkeyIndex
	pause func()
}

func (p *pausedIndex) Update(ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error) (pusher.Entry, error) {
	p.pause()
	return p.PushkeyIndex.Update(ctx, key, edit)
}

type pausedPushers struct {
	module.PusherStore
	pause func()
}

func (p *pausedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	p.pause()
	return p.PusherStore.Update(ctx, user, edit)
}

// An earlier set of the user stores its pusher between the two changes of a delete.
func TestADeleteHidesNoPusherThatItHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		of := func(pushers module.PusherStore, index module.PushkeyIndex) module.PusherService {
			return service.New(module.Stores{Pushers: pushers, Pushkeys: index}, nil, usual()).Pushers()
		}
		waitFor := func(ended chan struct{}) func() { return func() { <-ended } }
		others, left, all := make(chan struct{}), make(chan struct{}), sync.WaitGroup{}
		must := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		all.Go(func() {
			must(of(&pausedPushers{m, waitFor(others)}, m.index()).Set(t.Context(), alice, pusherOf("en"), pusher.RemoveOthers))
		})
		synctest.Wait()
		must(of(m, m.index()).Set(t.Context(), alice, pusherOf("de"), pusher.RemoveOthers))
		all.Go(func() { must(of(m, &pausedIndex{m.index(), waitFor(left)}).Delete(t.Context(), alice, thePushkey)) })
		synctest.Wait()
		for _, next := range []chan struct{}{others, left} {
			close(next)
			synctest.Wait()
			list, err := of(m, m.index()).List(t.Context(), alice)
			if p, found := list.Pusher(thePushkey); err != nil || !found || p.Lang != "en" {
				t.Errorf("got %v, found %t, %v", p, found, err)
			}
		}
		all.Wait()
	})
}

func TestClaimsHaveTheTimeOfTheStores(t *testing.T) {
	t.Parallel()
	now := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	for name, observer := range map[string]observe.Observer{"alone": nil, "observed": countingObserver{observe.None, new(atomic.Int64)}} {
		m, options := newMemory(), usual()
		options.Observer = observer
		stores := module.Stores{Pushers: m, Pushkeys: m.index(), Now: func() time.Time { return now }}
		if err := service.New(stores, nil, options).Pushers().Set(t.Context(), alice, pusherOf("en"), pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
		list := m.Lists[alice]
		if p, found := list.Pusher(thePushkey); !found || p.Claim != now.UnixMicro() || p.SetAt != now.UnixMicro() {
			t.Errorf("%s: found %t, claim %d, set at %d, want %d", name, found, p.Claim, p.SetAt, now.UnixMicro())
		}
		if o, is := observer.(countingObserver); is && o.operations.Load() == 0 {
			t.Error("nothing was observed")
		}
	}
}
