package service_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
)

func hostOf(c caller, options service.Options) module.HostService {
	return hostOn(module.Stores{Pushers: c, Pushkeys: c.index()}, nil, options)
}

func ownPusher(pushkey string, kind pusher.Kind, device string) pusher.Pusher {
	p := pusherOf("en")
	p.Pushkey, p.Kind, p.Device = pushkey, kind, device
	if kind == pusher.Email {
		p.AppID = pusher.EmailAppID
	}
	return p
}

func (m *memory) set(t *testing.T, user mxid.UserID, pushers ...pusher.Pusher) {
	t.Helper()
	services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usual()).Pushers()
	for _, p := range pushers {
		if err := services.Set(t.Context(), user, p, pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *memory) held(user mxid.UserID) (pushkeys []string) {
	list := m.Lists[user]
	for _, p := range list.All() {
		pushkeys = append(pushkeys, p.Pushkey)
	}
	return pushkeys
}

func TestTheHostRemovesThePushersOfDevices(t *testing.T) {
	t.Parallel()
	remove := func(devices ...string) func(module.HostService, context.Context) error {
		return func(h module.HostService, ctx context.Context) error {
			return h.RemoveDevicePushers(ctx, alice, devices...)
		}
	}
	keep := func(device string) func(module.HostService, context.Context) error {
		return func(h module.HostService, ctx context.Context) error {
			return h.KeepOnlyDevicePushers(ctx, alice, device)
		}
	}
	retain := func(devices ...string) func(module.HostService, context.Context) error {
		return func(h module.HostService, ctx context.Context) error {
			return h.RetainDevicePushers(ctx, alice, devices...)
		}
	}
	for name, test := range map[string]struct {
		do   func(module.HostService, context.Context) error
		want []string
	}{
		"one device logs out":            {remove("PHONE"), []string{"tablet", "phone@mail", "own@mail", "none"}},
		"two devices log out":            {remove("PHONE", "TABLET"), []string{"phone@mail", "own@mail", "none"}},
		"an unknown device":              {remove("WATCH"), []string{"phone", "tablet", "phone@mail", "own@mail", "none"}},
		"another case":                   {remove("phone"), []string{"phone", "tablet", "phone@mail", "own@mail", "none"}},
		"no devices":                     {remove(), []string{"phone", "tablet", "phone@mail", "own@mail", "none"}},
		"a device without a name":        {remove(""), []string{"phone", "tablet", "phone@mail", "own@mail", "none"}},
		"one beside one without a name":  {remove("", "TABLET"), []string{"phone", "phone@mail", "own@mail", "none"}},
		"all but one device":             {keep("PHONE"), []string{"phone", "phone@mail", "own@mail"}},
		"all but a device that has none": {keep("WATCH"), []string{"phone@mail", "own@mail"}},
		"all":                            {keep(""), []string{"phone@mail", "own@mail"}},
		"all that are not live":          {retain("PHONE", "WATCH"), []string{"phone", "phone@mail", "own@mail", "none"}},
		"none, since all are live":       {retain("PHONE", "TABLET"), []string{"phone", "tablet", "phone@mail", "own@mail", "none"}},
		"all, since none is live":        {retain(), []string{"phone@mail", "own@mail", "none"}},
		"all, since none has a name":     {retain(""), []string{"phone@mail", "own@mail", "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory()
			everything := []pusher.Pusher{
				ownPusher("phone", pusher.HTTP, "PHONE"), ownPusher("tablet", pusher.HTTP, "TABLET"),
				ownPusher("phone@mail", pusher.Email, "PHONE"), ownPusher("own@mail", pusher.Email, ""), ownPusher("none", pusher.HTTP, ""),
			}
			m.set(t, alice, everything...)
			m.set(t, bob, everything...)
			for range 2 {
				if err := test.do(hostOf(m.caller(), usual()), t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := m.held(alice); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if got := m.held(bob); len(got) != len(everything) {
				t.Errorf("the other user has only %q", got)
			}
			for _, p := range everything {
				want := []mxid.UserID{bob}
				if slices.Contains(test.want, p.Pushkey) {
					want = []mxid.UserID{alice, bob}
				}
				entry := m.Entries[p.Digest()]
				if got := slices.Sorted(slices.Values(entry.Users)); !slices.Equal(got, want) {
					t.Errorf("%s: named are %v, want %v", p.Pushkey, got, want)
				}
			}
		})
	}
}

// removals collects the reports about removed pushers.
type removals struct {
	observe.Observer
	texts *[]string
}

func (r removals) Report(problem observe.Problem, err error) {
	if removed := (*service.RemovedPusher)(nil); errors.As(err, &removed) {
		*r.texts = append(*r.texts, fmt.Sprintf("%s: %s %s", problem, removed.User, removed.Device))
	}
}

func TestRemovedPushersAreReported(t *testing.T) {
	t.Parallel()
	m, options, got := newMemory(), usual(), []string{}
	options.Observer = removals{observe.None, &got}
	services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, options)
	host := services.Host(services.Rules())
	m.set(t, alice, ownPusher("phone", pusher.HTTP, "PHONE"), ownPusher("tablet", pusher.HTTP, "TABLET"), ownPusher("watch", pusher.HTTP, "WATCH"), ownPusher("tv", pusher.HTTP, "TV"))
	for _, err := range []error{
		host.RemoveDevicePushers(t.Context(), alice, "TABLET"),
		host.RemoveDevicePushers(t.Context(), alice, "TABLET"), // again
		host.RetainDevicePushers(t.Context(), alice, "PHONE", "TV"),
		host.KeepOnlyDevicePushers(t.Context(), alice, "PHONE"),
		services.Pushers().Set(t.Context(), bob, ownPusher("phone", pusher.HTTP, "BOBS"), pusher.RemoveOthers),
		services.Pushers().Delete(t.Context(), bob, ownPusher("phone", pusher.HTTP, "").Key), // the app knows
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const loggedOut, taken = "pusher removed, its device is logged out: @alice:example.org ", "pusher removed, another user has set its pushkey: @alice:example.org "
	if want := []string{loggedOut + "TABLET", loggedOut + "WATCH", loggedOut + "TV", taken}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A push gateway has rejected the pushkey.
func TestARejectionRemovesThePusherUnlessItWasSetSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.do(t, act{alice, takes})
		host := hostOf(m.caller(), usual())
		list, err := m.Load(t.Context(), alice)
		if err != nil {
			t.Fatal(err)
		}
		at := list.All()[0].SetAt
		for _, other := range []int64{at - 1, at + 1, 0} {
			if err := host.RemovePusher(t.Context(), alice, thePushkey, other); err != nil || !m.has(alice, 0) {
				t.Errorf("set at %d, rejected at %d: owned by %v, %v", at, other, m.owners(thePushkey), err)
			}
		}
		for range 2 { // a repetition has no effect
			if err := host.RemovePusher(t.Context(), alice, thePushkey, at); err != nil || len(m.owners(thePushkey)) != 0 {
				t.Errorf("owned by %v, %v", m.owners(thePushkey), err)
			}
		}
		m.wantClean(t, false)
	})
}

func TestSettingOnlyEnabledKeepsTheDevice(t *testing.T) {
	t.Parallel()
	with := func(p pusher.Pusher, name, value string) pusher.Pusher {
		p.Extra = append(slices.Clone(p.Extra), pusher.Member{Name: name, Value: value})
		return p
	}
	phone := with(ownPusher("phone", pusher.HTTP, "PHONE"), "profile_tag", `"a"`)
	phone.Data = `{"url": "https://push.example.org/_matrix/push/v1/notify", "a/b": [1.0]}`
	off := with(phone, "enabled", "false")
	offBut := func(change func(*pusher.Pusher)) pusher.Pusher {
		p := off
		change(&p)
		return p
	}
	for name, test := range map[string]struct {
		stored, set pusher.Pusher
		device      string // the device afterwards
	}{
		"off":               {phone, off, "PHONE"},
		"off, with MSC3881": {phone, with(phone, "org.matrix.msc3881.enabled", "false"), "PHONE"},
		"on again":          {off, with(phone, "enabled", "true"), "PHONE"},
		"on, by leaving it": {off, phone, "PHONE"},
		"the text of JSON": {phone, offBut(func(p *pusher.Pusher) {
			p.Data = `{"a\/b":[1],"url":"https:\/\/push.example.org/_matrix/push/v1/notify"}`
		}), "PHONE"},
		"nothing":        {phone, phone, "DESKTOP"},
		"another lang":   {phone, offBut(func(p *pusher.Pusher) { p.Lang = "de" }), "DESKTOP"},
		"other data":     {phone, offBut(func(p *pusher.Pusher) { p.Data = pusherOf("en").Data }), "DESKTOP"},
		"another member": {phone, with(off, "x", "1"), "DESKTOP"},
		"a member less":  {phone, offBut(func(p *pusher.Pusher) { p.Extra = p.Extra[1:] }), "DESKTOP"},
	} {
		for _, others := range []pusher.Others{pusher.KeepOthers, pusher.RemoveOthers} {
			for _, owners := range [][]mxid.UserID{{alice}, {alice, bob}} {
				t.Run(fmt.Sprint(name, ", ", others, " ", owners), func(t *testing.T) {
					m := newMemory()
					for _, owner := range owners {
						m.set(t, owner, test.stored)
					}
					sent := test.set
					sent.Device = "DESKTOP"
					services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usual()).Pushers()
					if err := services.Set(t.Context(), alice, sent, others); err != nil {
						t.Fatal(err)
					}
					list := m.Lists[alice]
					got, _ := list.Pusher(phone.Key)
					if got.Device != test.device || got.Data != sent.Data || !slices.Equal(got.Extra, sent.Extra) {
						t.Errorf("got %+v", got)
					}
					for _, device := range []string{"DESKTOP", "PHONE"} {
						if err := hostOf(m.caller(), usual()).RemoveDevicePushers(t.Context(), alice, device); err != nil {
							t.Fatal(err)
						}
						if stays := len(m.held(alice)) > 0; stays != (device == "DESKTOP" && test.device == "PHONE") {
							t.Errorf("after the logout of %s: it is there: %v", device, stays)
						}
					}
				})
			}
		}
	}
}

type accounts struct {
	c    caller
	gone *string // the ended session, or empty
}

const (
	theTablet   = "the tablet"
	allButPhone = "all devices but the phone"
	theUser     = "the user"
)

const accountsTurn = "the accounts"

func (a accounts) LoggedIn(_ context.Context, _ mxid.UserID, device string) (bool, error) {
	if err := a.c.wait(turn{accountsTurn, false}); err != nil {
		return false, err
	}
	return *a.gone != theUser && (*a.gone == "" || device != "TABLET"), nil
}

func (a accounts) end(what string) error {
	if err := a.c.wait(turn{accountsTurn, true}); err != nil {
		return err
	}
	*a.gone = what
	return nil
}

func usualWith(a module.Accounts) service.Options {
	return service.Options{Policy: policyWithMail(), Accounts: a}
}

// idleFeed returns a feed that does not run, so only requests of the test read rules.
func idleFeed(t *testing.T, rules module.RuleStore) *feed.Feed {
	t.Helper()
	feed, err := feed.New(module.Stores{Rules: rules}, feed.DefaultConfig(), nil, feed.Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

func forgetful(c caller, rules *ruleMemory, feed *feed.Feed) module.HostService {
	return hostOn(module.Stores{Rules: ruleCaller{rules, c}, Pushers: c, Pushkeys: c.index()}, feed, usual())
}

// farewell lets alice's tablet set a pusher while the host ends the tablet or alice.
type farewell struct {
	before []act
	set    pusher.Pusher
	others pusher.Others
	ends   string
	stays  bool
}

var (
	tabletsOwn = pusherOf("new")
	tabletMail = pusher.Pusher{Key: pusher.Key{AppID: pusher.EmailAppID, Pushkey: "a@example.org"}, Kind: pusher.Email, Lang: "new", Device: "TABLET", Data: "{}"}
)

var farewells = map[string]farewell{
	"a new one":                  {nil, tabletsOwn, pusher.RemoveOthers, theTablet, false},
	"a new one, appended":        {nil, tabletsOwn, pusher.KeepOthers, theTablet, false},
	"in the place of another":    {takenBy(alice), tabletsOwn, pusher.RemoveOthers, theTablet, false},
	"appended to itself":         {takenBy(alice), tabletsOwn, pusher.KeepOthers, theTablet, false},
	"one of the phone's":         {[]act{{alice, takesByPhone}}, tabletsOwn, pusher.RemoveOthers, theTablet, false},
	"appended to the phone's":    {[]act{{alice, takesByPhone}}, tabletsOwn, pusher.KeepOthers, allButPhone, false},
	"one of somebody else's":     {takenBy(bob), tabletsOwn, pusher.RemoveOthers, theTablet, false},
	"appended to somebody's":     {takenBy(bob), tabletsOwn, pusher.KeepOthers, theTablet, false},
	"all other devices go":       {takenBy(bob), tabletsOwn, pusher.RemoveOthers, allButPhone, false},
	"the user goes":              {takenBy(bob), tabletsOwn, pusher.RemoveOthers, theUser, false},
	"the user goes, with theirs": {takenBy(alice), tabletsOwn, pusher.KeepOthers, theUser, false},
	"the user goes, with mail":   {nil, tabletMail, pusher.RemoveOthers, theUser, false},
	"mail of a tablet that goes": {nil, tabletMail, pusher.RemoveOthers, theTablet, true},
}

func TestAPusherSetDuringALogoutIsRemoved(t *testing.T) {
	t.Parallel()
	for name, f := range farewells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := map[error]int{}
			synctest.Test(t, func(t *testing.T) {
				exhaust(func(choose func(int) int) {
					if !t.Failed() {
						f.play(t, choose, answers)
					}
				})
			})
			if answers[nil] == 0 || (answers[module.ErrLoggedOut] == 0) != f.stays {
				t.Errorf("got the answers %v", answers)
			}
		})
	}
}

// play runs the requests in one order, and counts the result.
func (f farewell) play(t *testing.T, choose func(int) int, answers map[error]int) {
	t.Helper()
	m, gone := newMemory(), ""
	m.do(t, f.before...)
	set := func(ctx context.Context, c caller) error {
		return service.New(module.Stores{Pushers: c, Pushkeys: c.index()}, nil, usualWith(accounts{c, &gone})).Pushers().Set(ctx, alice, f.set, f.others)
	}
	runs, played := play(t.Context(), m, choose, 0, func() { m.wantNoneTaken(t) }, set, f.end(t, &gone))
	if !played {
		return
	}
	answer := runs[0].err
	answers[answer]++
	if answer != nil && !errors.Is(answer, module.ErrLoggedOut) || runs[1].err != nil {
		t.Errorf("got errors %v and %v", answer, runs[1].err)
	}
	if got, want := m.owners(f.set.Key), f.owners(); !slices.Equal(got, want) {
		t.Errorf("answered %v: owned by %v, want %v", answer, got, want)
	}
	m.wantClean(t, false)
}

// Two requests of the tablet set its pusher while the host ends the tablet. The second
// may find the first one's pusher, and renews it without asking the accounts.
func TestAPusherRenewedDuringALogoutIsRemoved(t *testing.T) {
	t.Parallel()
	orders, renewals := 1000, 0
	if testing.Short() {
		orders /= 10
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(orders) {
			m, gone := newMemory(), ""
			asked := 0
			set := func(lang string) request {
				return func(ctx context.Context, c caller) error {
					a := countedAccounts{accounts{c, &gone}, &asked}
					return service.New(module.Stores{Pushers: c, Pushkeys: c.index()}, nil, usualWith(a)).Pushers().Set(ctx, alice, pusherOf(lang), pusher.RemoveOthers)
				}
			}
			f := farewell{ends: theTablet}
			choose := rand.New(rand.NewPCG(seed, 0)).IntN
			runs, played := play(t.Context(), m, choose, 0, nil, set("one"), set("two"), f.end(t, &gone))
			if !played {
				continue
			}
			for _, run := range runs {
				if run.err != nil && !errors.Is(run.err, module.ErrLoggedOut) {
					t.Fatalf("seed %d: got error %v", seed, run.err)
				}
			}
			if asked < 2 {
				renewals++
			}
			if got := m.owners(thePushkey); len(got) > 0 {
				t.Fatalf("seed %d: owned by %v", seed, got)
			}
			m.wantClean(t, false)
		}
	})
	if renewals == 0 {
		t.Error("nobody has renewed a pusher")
	}
}

type countedAccounts struct {
	accounts
	asked *int
}

func (a countedAccounts) LoggedIn(ctx context.Context, user mxid.UserID, device string) (bool, error) {
	*a.asked++
	return a.accounts.LoggedIn(ctx, user, device)
}

// lateRenewal is accounts without the tablet. During their first call, an earlier request
// of the tablet renews its pusher.
type lateRenewal struct {
	renew func()
	asked int
}

func (l *lateRenewal) LoggedIn(_ context.Context, _ mxid.UserID, device string) (bool, error) {
	if l.asked++; l.asked == 1 {
		l.renew()
	}
	return device != "TABLET", nil
}

func TestTheHostIsAskedAgainAboutARenewedPusher(t *testing.T) {
	t.Parallel()
	m := newMemory()
	services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usual()).Pushers()
	renew := func() {
		if err := services.Set(t.Context(), alice, pusherOf("en"), pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	l := &lateRenewal{renew: renew}
	if err := hostOf(m.caller(), usualWith(l)).RetainDevicePushers(t.Context(), alice, "PHONE"); err != nil {
		t.Fatal(err)
	}
	if got := m.held(alice); len(got) > 0 || l.asked != 2 {
		t.Errorf("%q are stored, and %d times was asked", got, l.asked)
	}
}

func (f farewell) end(t *testing.T, gone *string) request {
	rules := rulesOf(module.Content{})
	feed := idleFeed(t, rules)
	return func(ctx context.Context, c caller) error {
		if err := (accounts{c, gone}).end(f.ends); err != nil {
			return err
		}
		host := forgetful(c, rules, feed)
		switch f.ends {
		case theTablet:
			return host.RemoveDevicePushers(ctx, alice, "TABLET")
		case allButPhone:
			return host.KeepOnlyDevicePushers(ctx, alice, "PHONE")
		}
		return host.ForgetUser(ctx, alice)
	}
}

// owners returns the final owners of the pushkey. If alice takes it, no other user owns it,
// even if the tablet turns out to be logged out.
func (f farewell) owners() []mxid.UserID {
	switch {
	case f.stays:
		return []mxid.UserID{alice}
	case f.others == pusher.RemoveOthers:
		return nil
	}
	return act{alice, deletes}.on(scenario{before: f.before}.holding()).users()
}

func TestFailingAccountsAreUnavailable(t *testing.T) {
	t.Parallel()
	broken := accounts{caller{wait: func(turn) error { return errDied }}, new(string)}
	for _, others := range []pusher.Others{pusher.RemoveOthers, pusher.KeepOthers} {
		m := newMemory()
		services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, usualWith(broken)).Pushers()
		err := services.Set(t.Context(), alice, pusherOf("en"), others)
		if fault.KindOf(err) != fault.Unavailable || !errors.Is(err, errDied) || strings.Contains(err.Error(), "storage") {
			t.Errorf("Set: got error %v", err)
		}
	}
	store := rulesOf(module.Content{})
	rules := service.New(module.Stores{Rules: store}, idleFeed(t, store), service.Options{Accounts: broken}).Rules()
	if _, err := rules.Content(t.Context(), alice); fault.KindOf(err) != fault.Unavailable || !errors.Is(err, errDied) || strings.Contains(err.Error(), "storage") {
		t.Errorf("Content: got error %v", err)
	}
	if _, err := rules.Content(t.Context(), alice); err != nil {
		t.Errorf("Content of rules that are there: %v", err)
	}
}

type ruleCaller struct {
	*ruleMemory
	c caller
}

const rulesTurn = "the rules"

func (r ruleCaller) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	return take(r.c, turn{rulesTurn, false}, func() (module.Content, error) { return r.ruleMemory.Load(ctx, user) })
}

func (r ruleCaller) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	all, err := take(r.c, turn{rulesTurn, false}, func() (map[mxid.UserID]module.Result[int64], error) {
		return r.ruleMemory.Versions(ctx, users), nil
	})
	for _, user := range users {
		if err != nil {
			all = map[mxid.UserID]module.Result[int64]{user: {Err: err}}
		}
	}
	return all
}

func (r ruleCaller) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (module.Content, error) {
	return take(r.c, turn{rulesTurn, true}, func() (module.Content, error) { return r.ruleMemory.Update(ctx, user, edit) })
}

func (r ruleCaller) Delete(ctx context.Context, user mxid.UserID) error {
	return takeAlone(r.c, turn{rulesTurn, true}, func() error { return r.ruleMemory.Delete(ctx, user) })
}

func TestRulesCreatedWhileTheUserIsForgottenAreRemoved(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]module.Content{
		"a user without rules":    {},
		"a user with rules":       found(pushrule.ServerDefault(alice)),
		"a user with an old rule": found(mustRead(t, withLegacy)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := map[error]int{}
			synctest.Test(t, func(t *testing.T) {
				exhaust(func(choose func(int) int) {
					if !t.Failed() {
						playFirstRead(t, before, choose, answers)
					}
				})
			})
			if answers[nil] == 0 || answers[module.ErrLoggedOut] == 0 {
				t.Errorf("got the answers %v", answers)
			}
		})
	}
}

// playFirstRead reads a user's rules while the user is forgotten, in one order, and
// counts the result.
func playFirstRead(t *testing.T, before module.Content, choose func(int) int, answers map[error]int) {
	t.Helper()
	m, rules, gone := newMemory(), rulesOf(before), ""
	m.set(t, alice, tabletsOwn)
	feed := idleFeed(t, rules)
	read := func(ctx context.Context, c caller) error {
		services := service.New(module.Stores{Rules: ruleCaller{rules, c}}, feed, service.Options{Accounts: accounts{c, &gone}}).Rules()
		_, err := services.Content(ctx, alice)
		return err
	}
	forget := func(ctx context.Context, c caller) error {
		if err := (accounts{c, &gone}).end(theUser); err != nil {
			return err
		}
		return forgetful(c, rules, feed).ForgetUser(ctx, alice)
	}
	runs, played := play(t.Context(), m, choose, 0, nil, read, forget)
	if !played {
		return
	}
	answer := runs[0].err
	answers[answer]++
	if answer != nil && !errors.Is(answer, module.ErrLoggedOut) || runs[1].err != nil {
		t.Errorf("got errors %v and %v", answer, runs[1].err)
	}
	if rules.content().Found() || m.held(alice) != nil {
		t.Errorf("answered %v: rules found %t, pushers %q", answer, rules.content().Found(), m.held(alice))
	}
}

func TestRepeatingForgetUserFinishesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		exhaust(func(choose func(int) int) {
			m, rules := newMemory(), rulesOf(found(pushrule.ServerDefault(alice)))
			m.do(t, act{bob, takes})
			pushers := []pusher.Pusher{pusherOf("en"), ownPusher("own@mail", pusher.Email, ""), ownPusher("phone", pusher.HTTP, "PHONE")}
			m.set(t, alice, pushers...)
			feed := idleFeed(t, rules)
			forget := func(ctx context.Context, c caller) error { return forgetful(c, rules, feed).ForgetUser(ctx, alice) }
			play(t.Context(), m, choose, 1, func() {}, forget)
			for range 2 {
				if err := forget(t.Context(), m.caller()); err != nil {
					t.Fatal(err)
				}
			}
			if _, kept := m.Lists[alice]; kept || rules.content().Found() {
				t.Error("something of the user is kept")
			}
			for key, entry := range m.Entries {
				if entry.By == alice || slices.Contains(entry.Users, alice) {
					t.Errorf("%s: the user is named", key)
				}
			}
			if got := m.owners(thePushkey); !slices.Equal(got, []mxid.UserID{bob}) {
				t.Errorf("the pushkey is owned by %v", got)
			}
		})
	})
}

func TestNoEntryNamesAUserWhoHasLeft(t *testing.T) {
	t.Parallel()
	forgets := func(ctx context.Context, s *service.Service) error { return s.Host(s.Rules()).ForgetUser(ctx, alice) }
	for name, test := range map[string]struct {
		before []act
		leaves func(context.Context, *service.Service) error
	}{
		"a deletion": {[]act{{alice, takes}}, func(ctx context.Context, s *service.Service) error { return s.Pushers().Delete(ctx, alice, thePushkey) }},
		"a logout": {[]act{{alice, takes}, {alice, appends}}, func(ctx context.Context, s *service.Service) error {
			return s.Host(s.Rules()).RemoveDevicePushers(ctx, alice, "TABLET")
		}},
		"forgotten":               {[]act{{alice, takes}}, forgets},
		"forgotten, a sharer":     {[]act{{bob, appends}, {alice, appends}}, forgets},
		"forgotten, after a take": {[]act{{alice, appends}, {alice, falters}}, forgets},
		"forgotten, hidden":       {[]act{{alice, takes}, {bob, falters}}, forgets},
	} {
		m, rules := newMemory(), rulesOf(found(pushrule.ServerDefault(alice)))
		m.do(t, test.before...)
		s := service.New(module.Stores{Rules: rules, Pushers: m, Pushkeys: m.index()}, idleFeed(t, rules), usual())
		if err := test.leaves(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if entry := m.Entries[thePushkey.Digest()]; entry.By == alice || slices.Contains(entry.Users, alice) {
			t.Errorf("%s: named in %+v", name, entry)
		}
		if strings.HasSuffix(name, "hidden") { // bob has taken the pushkey
			continue
		}
		m.do(t, act{carol, imports})
		if !slices.Contains(m.owners(thePushkey), carol) {
			t.Errorf("%s: an import was refused", name)
		}
	}
}

type unreadable struct{ *memory }

var errUnreadable = pusher.Unreadable(errors.New("it is damaged"))

func (unreadable) Load(context.Context, mxid.UserID) (pusher.List, error) {
	return pusher.List{}, errUnreadable
}

type unreadableIndex struct{ module.PushkeyIndex }

func (unreadableIndex) Update(context.Context, pusher.Digest, func(*pusher.Entry) error) (pusher.Entry, error) {
	return pusher.Entry{}, errUnreadable
}

func TestAUserWithUnreadableDataIsForgotten(t *testing.T) {
	t.Parallel()
	for name, host := range map[string]func(*memory, *ruleMemory, *feed.Feed) module.HostService{
		"the pushers": func(m *memory, r *ruleMemory, c *feed.Feed) module.HostService {
			return hostOn(module.Stores{Rules: r, Pushers: unreadable{m}, Pushkeys: m.index()}, c, usual())
		},
		"the claims": func(m *memory, r *ruleMemory, c *feed.Feed) module.HostService {
			return hostOn(module.Stores{Rules: r, Pushers: m, Pushkeys: unreadableIndex{m.index()}}, c, usual())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, rules := newMemory(), rulesOf(found(pushrule.Ruleset{}))
			m.set(t, alice, pusherOf("en"))
			if err := host(m, rules, idleFeed(t, rules)).ForgetUser(t.Context(), alice); err != nil {
				t.Fatal(err)
			}
			if _, kept := m.Lists[alice]; kept || rules.content().Found() {
				t.Error("something of the user is kept")
			}
		})
	}
}
