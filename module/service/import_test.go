package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	"github.com/pushfx/pushfx/module/storetest"
)

var errDown = errors.New("the source is down")

const contentOf = `{"global":{"room":[{"rule_id":"!old:example.org","default":true,"enabled":true,"actions":[]}]}}`

// former is the former server: a source whose operations wait for their turn.
type former struct {
	c      caller
	from   module.Import
	gone   *bool
	failed error
	asked  int
}

func (f *former) Load(context.Context, mxid.UserID) (module.Import, bool, error) {
	f.asked++
	if f.failed != nil {
		return module.Import{}, false, f.failed
	}
	if err := f.c.wait(turn{"the former server", false}); err != nil {
		return module.Import{}, false, err
	}
	return f.from, !*f.gone, nil
}

func (f *former) Forget(context.Context, mxid.UserID) error {
	if f.failed != nil {
		return f.failed
	}
	if err := f.c.wait(turn{"the former server", true}); err != nil {
		return err
	}
	*f.gone = true
	return nil
}

type tenancy struct {
	m        *memory
	rules    *ruleMemory
	feed     *feed.Feed
	former   *former
	reported []module.ImportResult // refusals at a first use
}

func newTenancy(t *testing.T, from module.Import) *tenancy {
	t.Helper()
	rules, m := rulesOf(module.Content{}), newMemory()
	return &tenancy{m: m, rules: rules, feed: idleFeed(t, rules), former: &former{c: m.caller(), from: from, gone: new(bool)}}
}

func (h *tenancy) service(c caller, accounts module.Accounts) *service.Service {
	source := *h.former
	source.c = c
	return h.serviceWith(c, accounts, &source)
}

func (h *tenancy) serviceWith(c caller, accounts module.Accounts, source module.ImportSource) *service.Service {
	return service.New(module.Stores{Rules: ruleCaller{h.rules, c}, Pushers: c, Pushkeys: c.index()}, h.feed, service.Options{
		Limits: pushrule.DefaultLimits(), Policy: pusher.DefaultPolicy(), Accounts: accounts, ImportSource: source,
		Observer: refusals{observe.None, h},
	})
}

type refusals struct {
	observe.Observer
	h *tenancy
}

func (r refusals) Report(_ observe.Problem, err error) {
	if refused := (*service.ImportRefused)(nil); errors.As(err, &refused) {
		r.h.reported = append(r.h.reported, refused.Result)
	}
}

func (h *tenancy) alone() *service.Service { return h.serviceWith(h.m.caller(), nil, h.former) }

func (h *tenancy) host() module.HostService {
	s := h.alone()
	return s.Host(s.Rules())
}

func (h *tenancy) has(id string) bool {
	content := h.rules.content()
	_, found := content.Rules.Rule(pushrule.Room, id)
	return found
}

var alicesImport = module.Import{Rules: contentOf, Pushers: []pusher.Pusher{ownPusher("second", pusher.HTTP, "TABLET"), ownPusher("first", pusher.HTTP, "PHONE")}}

func TestAUserIsImportedAtTheFirstUseOfAnyMethod(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	everybody := []mxid.UserID{alice}
	everything := []string{"second", "first"}
	for name, test := range map[string]struct {
		use   func(*service.Service) error
		rules bool
		held  []string
	}{
		"Content": {func(s *service.Service) error { return errOf(s.Rules().Content(ctx, alice)) }, true, everything},
		"Rule": {func(s *service.Service) error {
			return errOf(s.Rules().Rule(ctx, alice, pushrule.Room, "!old:example.org"))
		}, true, everything},
		"Enabled": {func(s *service.Service) error {
			return errOf(s.Rules().Enabled(ctx, alice, pushrule.Room, "!old:example.org"))
		}, true, everything},
		"Put": {func(s *service.Service) error {
			return s.Rules().Put(ctx, alice, pushrule.Room, "!new:example.org", pushrule.Draft{}, pushrule.Position{After: "!old:example.org"})
		}, true, everything},
		"SetEnabled": {func(s *service.Service) error {
			return s.Rules().SetEnabled(ctx, alice, pushrule.Room, "!old:example.org", false)
		}, true, everything},
		"Delete": {func(s *service.Service) error { return s.Rules().Delete(ctx, alice, pushrule.Room, "!old:example.org") }, false, everything},
		"Since": {func(s *service.Service) error {
			return errOf(newFeed(t, storetest.NewMemory().Rules()).Sync(s.Rules()).Since(ctx, alice, 0))
		}, true, everything},
		"EnsureDefaults": {func(s *service.Service) error { return s.Host(s.Rules()).EnsureDefaults(ctx, alice) }, true, everything},
		"CopyRoomRules": {func(s *service.Service) error {
			return s.Host(s.Rules()).CopyRoomRules(ctx, alice, "!old:example.org", "!new:example.org")
		}, true, everything},
		"Rulesets": {func(s *service.Service) error {
			result := s.Host(s.Rules()).Rulesets(ctx, everybody)[alice]
			if _, found := result.Value.Rules.Rule(pushrule.Room, "!old:example.org"); !found {
				return errors.Join(result.Err, errors.New("these are not the user's rules"))
			}
			return result.Err
		}, true, everything},
		"Pushers": {func(s *service.Service) error {
			result := s.Host(s.Rules()).Pushers(ctx, everybody)[alice]
			if result.Value.Len() != 2 {
				return errors.Join(result.Err, errors.New("these are not the user's pushers"))
			}
			return result.Err
		}, true, everything},
		"List": {func(s *service.Service) error {
			list, err := s.Pushers().List(ctx, alice)
			if list.Len() != 2 {
				return errors.Join(err, errors.New("these are not the user's pushers"))
			}
			return err
		}, true, everything},
		"Set": {func(s *service.Service) error {
			return s.Pushers().Set(ctx, alice, ownPusher("third", pusher.HTTP, "PHONE"), pusher.RemoveOthers)
		}, true, []string{"second", "first", "third"}},
		"Set of one": {func(s *service.Service) error {
			return s.Pushers().Set(ctx, alice, ownPusher("second", pusher.HTTP, "PHONE"), pusher.RemoveOthers)
		}, true, everything},
		"Delete of one": {func(s *service.Service) error {
			return s.Pushers().Delete(ctx, alice, ownPusher("second", pusher.HTTP, "PHONE").Key)
		}, true, []string{"first"}},
		"RemoveDevicePushers":   {func(s *service.Service) error { return s.Host(s.Rules()).RemoveDevicePushers(ctx, alice, "TABLET") }, true, []string{"first"}},
		"KeepOnlyDevicePushers": {func(s *service.Service) error { return s.Host(s.Rules()).KeepOnlyDevicePushers(ctx, alice, "TABLET") }, true, []string{"second"}},
		"RetainDevicePushers":   {func(s *service.Service) error { return s.Host(s.Rules()).RetainDevicePushers(ctx, alice, "PHONE") }, true, []string{"first"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTenancy(t, alicesImport)
			if err := test.use(h.alone()); err != nil {
				t.Fatal(err)
			}
			if !h.rules.content().Found() || h.has("!old:example.org") != test.rules || !slices.Equal(h.m.held(alice), test.held) {
				t.Errorf("stored are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
			}

			// The source is not asked again, and removed data does not come back.
			asked := h.former.asked
			s := h.alone()
			if err := s.Host(s.Rules()).KeepOnlyDevicePushers(ctx, alice, ""); err != nil {
				t.Fatal(err)
			}
			if list, err := s.Pushers().List(ctx, alice); err != nil || list.Len() != 0 || len(h.m.held(alice)) != 0 {
				t.Errorf("%d pushers, %v", list.Len(), err)
			}
			if result := s.Host(s.Rules()).Pushers(ctx, everybody)[alice]; result.Err != nil || result.Value.Len() != 0 {
				t.Errorf("%d pushers, %v", result.Value.Len(), result.Err)
			}
			if h.former.asked != asked {
				t.Errorf("the source was asked %d times about a user who is there", h.former.asked-asked)
			}

			// Without the source the same call fails or finds nothing, so the test can
			// fail.
			if none := newTenancy(t, alicesImport); name != "Set" {
				_ = test.use(none.serviceWith(none.m.caller(), nil, nil))
				if none.has("!old:example.org") || slices.Equal(none.m.held(alice), everything) {
					t.Error("the user was imported without a source")
				}
			}
		})
	}
}

func errOf[T any](_ T, err error) error { return err }

// After an error of the source, no user gets defaults.
func TestASourceThatFailsIsUnavailableAndChangesNothing(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, alicesImport)
	h.former.failed = errDown
	s := h.alone()
	host := s.Host(s.Rules())
	everybody := []mxid.UserID{alice}
	for name, err := range map[string]error{
		"Content":  errOf(s.Rules().Content(t.Context(), alice)),
		"Put":      s.Rules().Put(t.Context(), alice, pushrule.Room, "!a", pushrule.Draft{}, pushrule.Position{}),
		"List":     errOf(s.Pushers().List(t.Context(), alice)),
		"Set":      s.Pushers().Set(t.Context(), alice, pusherOf("en"), pusher.KeepOthers),
		"Rulesets": host.Rulesets(t.Context(), everybody)[alice].Err,
		"Pushers":  host.Pushers(t.Context(), everybody)[alice].Err,
		"Forget":   host.ForgetUser(t.Context(), alice),
	} {
		if fault.KindOf(err) != fault.Unavailable || !errors.Is(err, errDown) || strings.Contains(err.Error(), "storage") ||
			!strings.Contains(fault.Details(err), ": import source: ") {
			t.Errorf("%s: got %s", name, fault.Details(err))
		}
	}
	if h.rules.content().Found() || h.m.held(alice) != nil || len(h.m.Entries) != 0 {
		t.Errorf("stored are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
	}
}

// The rules stay while the source still has the user, so that the pushers do not come back.
func TestForgetUserKeepsTheRulesUntilTheSourceHasForgotten(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, alicesImport)
	s := h.alone()
	host := s.Host(s.Rules())
	if err := host.EnsureDefaults(t.Context(), alice); err != nil || len(h.m.held(alice)) != 2 {
		t.Fatalf("stored are %q, %v", h.m.held(alice), err)
	}
	h.former.failed = errDown
	if err := host.ForgetUser(t.Context(), alice); !errors.Is(err, errDown) || !h.has("!old:example.org") {
		t.Errorf("got %v; stored are %s", err, text(h.rules.content().Rules))
	}
	h.former.failed = nil
	if list, err := s.Pushers().List(t.Context(), alice); err != nil || list.Len() != 0 || len(h.m.held(alice)) != 0 {
		t.Errorf("%d pushers, %v", list.Len(), err)
	}
	if err := host.ForgetUser(t.Context(), alice); err != nil || h.rules.content().Found() {
		t.Errorf("got %v; stored are %s", err, text(h.rules.content().Rules))
	}
}

// blind finds no versions, or fails.
type blind struct {
	ruleCaller
	err error
}

func (b blind) Versions(_ context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	all := map[mxid.UserID]module.Result[int64]{}
	for _, user := range users {
		all[user] = module.Result[int64]{Err: b.err}
	}
	return all
}

func TestAUserWithRulesIsNotImportedByABulkRead(t *testing.T) {
	t.Parallel()
	for _, failed := range []error{nil, pushrule.Unreadable(errDown)} {
		h := newTenancy(t, alicesImport)
		h.rules.set(found(pushrule.ServerDefault(alice)))
		c := h.m.caller()
		s := service.New(module.Stores{Rules: blind{ruleCaller{h.rules, c}, failed}, Pushers: c, Pushkeys: c.index()}, h.feed,
			service.Options{Limits: pushrule.DefaultLimits(), Policy: pusher.DefaultPolicy(), ImportSource: h.former})
		if list, err := s.Pushers().List(t.Context(), alice); err != nil || list.Len() != 0 || h.former.asked != 0 {
			t.Errorf("versions %v: got %d pushers, %v; the source was asked %d times", failed, list.Len(), err, h.former.asked)
		}
	}
}

type slowSource struct {
	module.ImportSource
	meanwhile func()
}

func (s slowSource) Load(ctx context.Context, user mxid.UserID) (module.Import, bool, error) {
	from, found, err := s.ImportSource.Load(ctx, user)
	s.meanwhile()
	return from, found, err
}

func TestAPusherRemovedWhileTheSourceAnswersDoesNotComeBack(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, alicesImport)
	slow := slowSource{h.former, sync.OnceFunc(func() {
		if err := h.alone().Pushers().Delete(t.Context(), alice, ownPusher("second", pusher.HTTP, "").Key); err != nil {
			t.Error(err)
		}
		if _, err := h.alone().Rules().Content(t.Context(), alice); err != nil {
			t.Error(err)
		}
	})}
	list, err := h.serviceWith(h.m.caller(), nil, slow).Pushers().List(t.Context(), alice)
	if err != nil || list.Len() != 1 || !slices.Equal(h.m.held(alice), []string{"first"}) {
		t.Errorf("stored are %q, %v", h.m.held(alice), err)
	}
}

func TestAUserUnknownToTheSourceGetsTheDefaults(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, alicesImport)
	*h.former.gone = true
	s := h.alone()
	if list, err := s.Pushers().List(t.Context(), alice); err != nil || list.Len() != 0 || h.rules.content().Found() {
		t.Errorf("got %d pushers, %v", list.Len(), err)
	}
	if err := s.Rules().Put(t.Context(), alice, pushrule.Room, "!a", pushrule.Draft{}, pushrule.Position{}); !errors.Is(err, pushrule.ErrEventNotFound) {
		t.Errorf("got %v", err)
	}
	content, err := s.Rules().Content(t.Context(), alice)
	if want := pushrule.ServerDefault(alice); err != nil || !content.Rules.Equal(want) {
		t.Errorf("got %s, %v", text(content.Rules), err)
	}
}

// The user is forgotten during an import, in every order of the steps, with and without
// accounts.
func TestAForgottenUserDoesNotComeBackFromTheOldServer(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(context.Context, *service.Service) error{
		"rules":   func(ctx context.Context, s *service.Service) error { return errOf(s.Rules().Content(ctx, alice)) },
		"pushers": func(ctx context.Context, s *service.Service) error { return errOf(s.Pushers().List(ctx, alice)) },
	} {
		for _, withAccounts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, accounts %t", name, withAccounts), func(t *testing.T) {
				t.Parallel()
				played := 0
				synctest.Test(t, func(t *testing.T) {
					exhaust(func(choose func(int) int) {
						if t.Failed() {
							return
						}
						h, gone := newTenancy(t, module.Import{Rules: contentOf, Pushers: []pusher.Pusher{pusherOf("en")}}), ""
						services := func(c caller) *service.Service {
							if withAccounts {
								return h.service(c, accounts{c, &gone})
							}
							return h.service(c, nil)
						}
						read := func(ctx context.Context, c caller) error { return use(ctx, services(c)) }
						forget := func(ctx context.Context, c caller) error {
							if err := (accounts{c, &gone}).end(theUser); err != nil {
								return err
							}
							s := services(c)
							return s.Host(s.Rules()).ForgetUser(ctx, alice)
						}
						runs, ended := play(t.Context(), h.m, choose, 0, nil, read, forget)
						if !ended {
							return
						}
						played++
						if err := runs[0].err; err != nil && !errors.Is(err, module.ErrLoggedOut) || runs[1].err != nil {
							t.Errorf("got errors %v and %v", err, runs[1].err)
						}
						if h.has("!old:example.org") || len(h.m.held(alice)) != 0 || withAccounts && h.rules.content().Found() {
							t.Errorf("back are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
						}
					})
				})
				t.Logf("%d orders", played)
				if played < 10 {
					t.Errorf("only %d orders", played)
				}
			})
		}
	}
}

// Two hosts import a user at the same time, or one does while a client puts the first
// rule.
func TestAnImportRacesWithOtherCalls(t *testing.T) {
	t.Parallel()
	put := func(ctx context.Context, s *service.Service) error {
		if err := errOf(s.Rules().Content(ctx, alice)); err != nil {
			return err
		}
		return s.Rules().Put(ctx, alice, pushrule.Room, "!new:example.org", pushrule.Draft{}, pushrule.Position{})
	}
	imported := func(ctx context.Context, s *service.Service) error {
		return errOf(s.Host(s.Rules()).Import(ctx, alice, module.Import{Rules: contentOf, Pushers: []pusher.Pusher{pusherOf("en")}}, module.StoreImport))
	}
	for name, test := range map[string]struct {
		first, second func(context.Context, *service.Service) error
		put           bool
		kills         int
	}{
		"an import and a client that sets": {imported, func(ctx context.Context, s *service.Service) error {
			return s.Pushers().Set(ctx, alice, pusherOf("de"), pusher.RemoveOthers)
		}, false, 0},
		"two imports":                        {imported, imported, false, 0},
		"two imports, one of which dies":     {imported, imported, false, 1},
		"an import and a first use":          {imported, func(ctx context.Context, s *service.Service) error { return errOf(s.Pushers().List(ctx, alice)) }, false, 0},
		"an import and a client that puts":   {imported, put, true, 0},
		"a first use and a client that puts": {func(ctx context.Context, s *service.Service) error { return errOf(s.Rules().Content(ctx, alice)) }, put, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				exhaust(func(choose func(int) int) {
					if t.Failed() {
						return
					}
					h := newTenancy(t, module.Import{Rules: contentOf, Pushers: []pusher.Pusher{pusherOf("en")}})
					runs, played := play(t.Context(), h.m, choose, test.kills, func() { h.m.wantNoneTaken(t) },
						func(ctx context.Context, c caller) error { return test.first(ctx, h.service(c, nil)) },
						func(ctx context.Context, c caller) error { return test.second(ctx, h.service(c, nil)) })
					if !played {
						return
					}
					for _, run := range runs {
						if run.err != nil && !run.died {
							t.Error(run.err)
						}
					}
					if runs[0].died || runs[1].died { // repeat it
						if err := imported(t.Context(), h.service(h.m.caller(), nil)); err != nil {
							t.Error(err)
						}
					}
					list := h.m.Lists[alice]
					if !h.has("!old:example.org") || h.has("!new:example.org") != test.put || list.Len() != 1 {
						t.Errorf("stored are %s and %d pushers", text(h.rules.content().Rules), list.Len())
					}
					entry := h.m.Entries[thePushkey.Digest()]
					p, _ := list.Pusher(thePushkey)
					if p.Claim == 0 || !entry.Shows(alice, p.Claim) || !slices.Contains(entry.Users, alice) {
						t.Errorf("the pusher has claim %d, and the entry is %+v", p.Claim, entry)
					}
					if strings.HasSuffix(name, "sets") != (p.Lang == "de") {
						t.Errorf("stored is the pusher %q", p.Lang)
					}
				})
			})
		})
	}
}

func TestImportRefusesPushersByName(t *testing.T) {
	t.Parallel()
	bad := ownPusher("bad", pusher.HTTP, "PHONE")
	bad.Data = `{"url":"ftp://push.example.org"}`
	mail := ownPusher("own@mail", pusher.Email, "GONE")
	old := ownPusher("old", pusher.HTTP, "PHONE")
	old.SetAt = 17
	policy := policyWithMail()
	policy.MaxPushers = 3
	h := newTenancy(t, module.Import{})
	h.m.do(t, act{bob, takes})
	l := &ledger{gone: []module.Session{{User: alice, Device: "GONE"}}}
	from := module.Import{Pushers: []pusher.Pusher{
		old, bad, pusherOf("en"), mail, old, ownPusher("gone", pusher.HTTP, "GONE"), ownPusher("third", pusher.HTTP, "PHONE"),
		ownPusher("fourth", pusher.HTTP, "PHONE"),
	}}
	s := service.New(module.Stores{Rules: h.rules, Pushers: h.m, Pushkeys: h.m.index()}, h.feed,
		service.Options{Limits: pushrule.DefaultLimits(), Policy: policy, Accounts: l})
	rehearsed, err := s.Host(s.Rules()).Import(t.Context(), alice, from, module.DryRunImport)
	if got := rehearsed.Pushers; len(got.Refused) != 2 || got.Refused[0].Key != bad.Digest() || !errors.Is(got.Refused[1].Err, pusher.ErrTwice) || got.Stored != 6 {
		t.Errorf("the dry run reported %+v", got)
	}
	if err != nil || h.m.held(alice) != nil || h.rules.content().Found() || len(h.m.Entries) != 1 {
		t.Fatalf("a dry run has changed something: %v, %q", err, h.m.held(alice))
	}
	done, err := s.Host(s.Rules()).Import(t.Context(), alice, from, module.StoreImport)
	if got := h.m.held(alice); err != nil || !slices.Equal(got, []string{"old", "own@mail", "third"}) || done.Pushers.Stored != 3 {
		t.Errorf("stored are %q: %+v", got, done.Pushers)
	}
	want := map[pusher.Digest]error{
		bad.Digest(): nil, old.Digest(): pusher.ErrTwice, thePushkey.Digest(): pusher.ErrTaken,
		ownPusher("gone", pusher.HTTP, "").Digest():   module.ErrLoggedOut,
		ownPusher("fourth", pusher.HTTP, "").Digest(): nil,
	}
	for _, refused := range done.Pushers.Refused {
		if err, is := want[refused.Key]; !is || err != nil && !errors.Is(refused.Err, err) || refused.AppID != "app" {
			t.Errorf("refused is %+v", refused)
		}
		delete(want, refused.Key)
	}
	if len(want) != 0 || strings.Contains(fmt.Sprintf("%+v", done), "fourth") {
		t.Errorf("not refused were %v: %+v", want, done)
	}
	list := h.m.Lists[alice]
	if p, _ := list.Pusher(old.Key); p.SetAt != 17 || p.Created != 1 {
		t.Errorf("got %+v", p)
	}
	if p, _ := list.Pusher(mail.Key); p.SetAt == 0 {
		t.Error("a pusher of unknown age has no time")
	}
}

func TestImportStoresOnlyMissingParts(t *testing.T) {
	t.Parallel()
	one, both := alicesImport.Pushers[:1], alicesImport.Pushers
	for name, test := range map[string]struct {
		rules   bool            // stored before
		pushers []pusher.Pusher // stored before
		from    module.Import
		want    module.ImportedPushers
		held    []string
	}{
		"nothing there":       {false, nil, alicesImport, module.ImportedPushers{Outcome: module.Imported, Stored: 2}, []string{"second", "first"}},
		"rules there":         {true, nil, alicesImport, module.ImportedPushers{Outcome: module.Imported, Stored: 2}, []string{"second", "first"}},
		"others there":        {false, []pusher.Pusher{pusherOf("en")}, alicesImport, module.ImportedPushers{Outcome: module.Imported, Stored: 2}, []string{"key", "second", "first"}},
		"rules and one":       {true, one, alicesImport, module.ImportedPushers{Outcome: module.Imported, Stored: 1}, []string{"second", "first"}},
		"everything there":    {true, both, alicesImport, module.ImportedPushers{Outcome: module.AlreadyThere}, []string{"second", "first"}},
		"nothing to import":   {false, nil, module.Import{}, module.ImportedPushers{Outcome: module.NothingToImport}, nil},
		"rules but no import": {true, one, module.Import{}, module.ImportedPushers{Outcome: module.NothingToImport}, []string{"second"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTenancy(t, module.Import{})
			if test.rules {
				h.rules.set(found(pushrule.ServerDefault(alice)))
			}
			h.m.set(t, alice, test.pushers...)
			stored, want := h.m.Lists[alice], module.ImportResult{Pushers: test.want}
			if want.Rules.Outcome = module.AlreadyThere; !test.rules {
				want.Rules.Outcome, want.Rules.Own = module.Imported, strings.Count(test.from.Rules, "!old:example.org")
			}
			rules := text(h.rules.content().Rules)
			for _, mode := range []module.ImportMode{module.DryRunImport, module.StoreImport} {
				got, err := h.host().Import(t.Context(), alice, test.from, mode)
				if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: got %+v, %v, want %+v", mode, got, err, want)
				}
			}
			if test.rules != (rules == text(h.rules.content().Rules)) || !slices.Equal(h.m.held(alice), test.held) {
				t.Errorf("stored are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
			}
			for i, p := range stored.All() {
				if list := h.m.Lists[alice]; !list.All()[i].Equal(p) {
					t.Errorf("the stored pusher has changed to %+v", list.All()[i])
				}
			}
			commits := h.rules.commits()
			if got, err := h.host().Import(t.Context(), alice, test.from, module.StoreImport); err != nil || got.Rules.Outcome != module.AlreadyThere || got.Pushers.Stored != 0 || h.rules.commits() != commits {
				t.Errorf("again: got %+v, %v", got, err)
			}
		})
	}
}

// Pushers are stored one by one. If the host dies at any step, the next use of any host
// stores the others before it answers.
func TestAnImportThatDiedGoesOnAtTheNextUse(t *testing.T) {
	t.Parallel()
	list := func(ctx context.Context, s *service.Service) (pusher.List, error) {
		return s.Pushers().List(ctx, alice)
	}
	many := func(ctx context.Context, s *service.Service) (pusher.List, error) {
		result := s.Host(s.Rules()).Pushers(ctx, []mxid.UserID{alice})[alice]
		return result.Value, result.Err
	}
	for name, read := range map[string]func(context.Context, *service.Service) (pusher.List, error){"one user": list, "many users": many} {
		for turns, died := 0, true; died; turns++ {
			h := newTenancy(t, alicesImport)
			_, failed := h.service(h.m.caller().until(turns), nil).Rules().Content(t.Context(), alice)
			died = failed != nil
			got, err := read(t.Context(), h.alone())
			if err != nil || got.Len() != 2 || !slices.Equal(h.m.held(alice), []string{"second", "first"}) || !h.has("!old:example.org") {
				t.Errorf("%s, after %d turns: stored are %q, %v", name, turns, h.m.held(alice), err)
			}
		}
	}
}

func TestAnUnreadableImportStoresNothing(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, module.Import{Rules: `{"global":[]}`, Pushers: alicesImport.Pushers})
	if _, err := h.host().Import(t.Context(), alice, h.former.from, module.StoreImport); fault.KindOf(err) != fault.Database {
		t.Errorf("got %v", err)
	}
	if _, err := h.alone().Rules().Content(t.Context(), alice); fault.KindOf(err) != fault.Database {
		t.Errorf("at the first use: got %v", err)
	}
	if h.rules.content().Found() || h.m.held(alice) != nil {
		t.Errorf("stored are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
	}
}

func TestImportStoresNothingForAnEndedUser(t *testing.T) {
	t.Parallel()
	h, gone := newTenancy(t, alicesImport), theUser
	s := h.service(h.m.caller(), accounts{h.m.caller(), &gone})
	if _, err := s.Host(s.Rules()).Import(t.Context(), alice, alicesImport, module.StoreImport); !errors.Is(err, module.ErrLoggedOut) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Rules().Content(t.Context(), alice); !errors.Is(err, module.ErrLoggedOut) {
		t.Errorf("at the first use: got %v", err)
	}
	for name, err := range map[string]error{
		"RemoveDevicePushers": s.Host(s.Rules()).RemoveDevicePushers(t.Context(), alice, "TABLET"),
		"RetainDevicePushers": s.Host(s.Rules()).RetainDevicePushers(t.Context(), alice),
		"Pushers":             s.Host(s.Rules()).Pushers(t.Context(), []mxid.UserID{alice})[alice].Err,
	} {
		if err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if h.rules.content().Found() || h.m.held(alice) != nil || len(h.m.Entries) != 0 {
		t.Errorf("stored are %s and %q", text(h.rules.content().Rules), h.m.held(alice))
	}
}

func TestRefusalsAtAFirstUseAreReported(t *testing.T) {
	t.Parallel()
	h := newTenancy(t, module.Import{Rules: `{"global":{"room":[{"rule_id":"a/b","actions":[]},{"rule_id":"!old:example.org","actions":[]}]}}`})
	if err := h.host().EnsureDefaults(t.Context(), alice); err != nil || len(h.reported) != 1 || h.reported[0].Refused() != 1 || !h.has("!old:example.org") {
		t.Errorf("reported is %+v, %v", h.reported, err)
	}
}
