package service_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
)

var errMailDown = errors.New("the host cannot look")

// mailServices is a host that confirms the listed addresses of each user, and fails for
// carol.
func mailServices(t *testing.T, m *memory, addresses map[mxid.UserID][]string) *service.Service {
	t.Helper()
	policy := pusher.DefaultPolicy()
	policy.Email = func(_ context.Context, user mxid.UserID, address string) (bool, error) {
		if user == carol {
			return false, errMailDown
		}
		return slices.Contains(addresses[user], address), nil
	}
	rules := rulesOf(module.Content{})
	stores := module.Stores{Rules: rules, Pushers: m, Pushkeys: m.index()}
	return service.New(stores, idleFeed(t, rules), service.Options{Policy: policy})
}

func TestAnEmailPusherNeedsAConfirmedAddress(t *testing.T) {
	t.Parallel()
	mail := ownPusher("a@example.org", pusher.Email, "PHONE")
	for name, test := range map[string]struct {
		user mxid.UserID
		want error
	}{
		"theirs":                 {alice, nil},
		"somebody else's":        {bob, pusher.ErrAddress},
		"the confirmation fails": {carol, errMailDown},
		"without addresses":      {dave, pusher.ErrAddress},
	} {
		m := newMemory()
		s := mailServices(t, m, map[mxid.UserID][]string{alice: {"a@example.org"}, bob: {"b@example.org"}})
		err := s.Pushers().Set(t.Context(), test.user, mail, pusher.RemoveOthers)
		if !errors.Is(err, test.want) || errors.Is(test.want, errMailDown) && (fault.KindOf(err) != fault.Unavailable || strings.Contains(err.Error(), "storage")) {
			t.Errorf("%s: got %v", name, err)
		}
		if set := len(m.held(test.user)) == 1; set != (test.want == nil) || len(m.Entries) > len(m.held(test.user)) {
			t.Errorf("%s: it is set: %v, with %d entries", name, set, len(m.Entries))
		}
		from := module.Import{Pushers: []pusher.Pusher{mail, ownPusher("phone", pusher.HTTP, "PHONE")}}
		m = newMemory()
		s = mailServices(t, m, map[mxid.UserID][]string{alice: {"a@example.org"}, bob: {"b@example.org"}})
		done, err := s.Host(s.Rules()).Import(t.Context(), test.user, from, module.StoreImport)
		switch {
		case errors.Is(test.want, errMailDown):
			if !errors.Is(err, errMailDown) || m.held(test.user) != nil {
				t.Errorf("%s: imported %q, %v", name, m.held(test.user), err)
			}
		case err != nil || (len(done.Pushers.Refused) == 0) != (test.want == nil) || done.Pushers.Stored != 2-len(done.Pushers.Refused):
			t.Errorf("%s: imported %+v, %v", name, done, err)
		}
	}
}

// RFC 5321, 2.4: the case of a domain does not matter, and the part before the @ is the server's. RFC 5890, 2.3.2.1: U-labels
// and A-labels are the same domain.
func TestTheDomainOfAnAddressHasOneForm(t *testing.T) {
	t.Parallel()
	spelled := []pusher.Pusher{ownPusher("a@Example.ORG", pusher.Email, "PHONE"), ownPusher("a@example.org", pusher.Email, "PHONE"), ownPusher("A@EXAMPLE.org", pusher.Email, "PHONE"),
		ownPusher("a@Bücher.example", pusher.Email, "PHONE"), ownPusher("a@xn--bcher-kva.example", pusher.Email, "PHONE")}
	want := []string{"a@example.org", "A@example.org", "a@xn--bcher-kva.example"}
	for name, set := range map[string]func(s *service.Service) error{
		"set": func(s *service.Service) (err error) {
			for _, p := range spelled {
				err = errors.Join(err, s.Pushers().Set(t.Context(), alice, p, pusher.KeepOthers))
			}
			return err
		},
		"import": func(s *service.Service) error {
			for range 2 {
				done, err := s.Host(s.Rules()).Import(t.Context(), alice, module.Import{Pushers: spelled}, module.StoreImport)
				if err != nil || len(done.Pushers.Refused) > 2 { // two are twice there
					return fmt.Errorf("%+v, %w", done, err)
				}
			}
			return nil
		},
	} {
		s := mailServices(t, newMemory(), map[mxid.UserID][]string{alice: want})
		if err := set(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		list, err := s.Pushers().List(t.Context(), alice)
		var got []string
		for _, p := range list.All() {
			got = append(got, p.Pushkey)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		err = errors.Join(s.Pushers().Delete(t.Context(), alice, ownPusher("a@EXAMPLE.ORG", pusher.Email, "").Key),
			s.Pushers().Delete(t.Context(), alice, ownPusher("a@BÜCHER.example", pusher.Email, "").Key))
		if list, failed := s.Pushers().List(t.Context(), alice); err != nil || failed != nil || list.Len() != 1 {
			t.Errorf("%s: %d are left, %v, %v", name, list.Len(), err, failed)
		}
	}
}

func TestSettingAnEmailPusherRemovesNoOther(t *testing.T) {
	t.Parallel()
	m := newMemory()
	mail := ownPusher("shared@example.org", pusher.Email, "PHONE")
	both := mailServices(t, m, map[mxid.UserID][]string{alice: {mail.Pushkey}, bob: {mail.Pushkey}}).Pushers()
	for range 2 {
		for _, user := range []mxid.UserID{alice, bob} {
			if err := both.Set(t.Context(), user, mail, pusher.RemoveOthers); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := m.owners(mail.Key); !slices.Equal(got, []mxid.UserID{alice, bob}) {
		t.Errorf("it is there for %v", got)
	}
	asHTTP := ownPusher(mail.Pushkey, pusher.HTTP, "PHONE")
	asHTTP.AppID = pusher.EmailAppID
	if err := both.Set(t.Context(), dave, asHTTP, pusher.RemoveOthers); fault.KindOf(err) != fault.InvalidParam || len(m.owners(mail.Key)) != 2 {
		t.Errorf("an http pusher of an address: %v, it is there for %v", err, m.owners(mail.Key))
	}
}

// A host that no longer sends mail may have stored pushers of kind email.
func TestStoredEmailPushersStay(t *testing.T) {
	t.Parallel()
	m := newMemory()
	mail := ownPusher("a@example.org", pusher.Email, "PHONE")
	m.set(t, alice, mail)
	services := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: pusher.DefaultPolicy()}).Pushers()
	if list, err := services.List(t.Context(), alice); err != nil || list.Len() != 1 {
		t.Errorf("got %v, %v", list, err)
	}
	if err := services.Set(t.Context(), alice, mail, pusher.KeepOthers); fault.KindOf(err) != fault.InvalidParam {
		t.Errorf("it was set: %v", err)
	}
	if err := services.Delete(t.Context(), alice, mail.Key); err != nil || m.held(alice) != nil {
		t.Errorf("it was not deleted: %v", err)
	}
}

func TestTokensOfMailsRemoveTheirPushers(t *testing.T) {
	t.Parallel()
	mine, other, phone := ownPusher("a@example.org", pusher.Email, "PHONE"), ownPusher("b@example.org", pusher.Email, "PHONE"), ownPusher("a@example.org", pusher.HTTP, "PHONE")
	tokens := mail.NewTokens("sixteen bytes or more")
	link, bounce := tokens.Unsubscribe(alice, mine.Pushkey), tokens.Bounce(mine.Pushkey)
	for name, test := range map[string]struct {
		call      func(context.Context, module.HostService) error
		tokens    *mail.Tokens
		of        map[mxid.UserID]int // what is left
		isRefused bool
	}{
		"unsubscribe":         {func(ctx context.Context, h module.HostService) error { return h.Unsubscribe(ctx, link) }, tokens, map[mxid.UserID]int{alice: 2, bob: 1}, false},
		"bounce":              {func(ctx context.Context, h module.HostService) error { return h.MailBounced(ctx, bounce) }, tokens, map[mxid.UserID]int{alice: 2, bob: 0}, false},
		"a link as bounce":    {func(ctx context.Context, h module.HostService) error { return h.MailBounced(ctx, link) }, tokens, map[mxid.UserID]int{alice: 3, bob: 1}, true},
		"a bounce as link":    {func(ctx context.Context, h module.HostService) error { return h.Unsubscribe(ctx, bounce) }, tokens, map[mxid.UserID]int{alice: 3, bob: 1}, true},
		"a host without mail": {func(ctx context.Context, h module.HostService) error { return h.Unsubscribe(ctx, link) }, nil, map[mxid.UserID]int{alice: 3, bob: 1}, true},
	} {
		m := newMemory()
		policy := pusher.DefaultPolicy()
		policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
		s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policy, Mail: test.tokens})
		for _, p := range []pusher.Pusher{mine, other, phone} {
			if err := s.Pushers().Set(t.Context(), alice, p, pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Pushers().Set(t.Context(), bob, mine, pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a repetition has the same answer
			err := test.call(t.Context(), s.Host(s.Rules()))
			if isRefused := fault.KindOf(err) == fault.InvalidParam; isRefused != test.isRefused || err != nil && !isRefused {
				t.Errorf("%s: got %v", name, err)
			}
		}
		for user, left := range test.of {
			if list, err := s.Pushers().List(t.Context(), user); err != nil || list.Len() != left {
				t.Errorf("%s: %s has %d pushers, %v", name, user, list.Len(), err)
			}
		}
	}
}

// loads is a store that fails with err, if any, when it reads.
type loads struct {
	module.PusherStore
	err error
}

func (l loads) Load(ctx context.Context, user mxid.UserID) (pusher.List, error) {
	if l.err != nil {
		return pusher.List{}, l.err
	}
	return l.PusherStore.Load(ctx, user)
}

// The page behind the link names the app of the pusher, whose name is a client's.
func TestALinkNamesItsUserAndApp(t *testing.T) {
	t.Parallel()
	tokens := mail.NewTokens("sixteen bytes or more")
	errDown := errors.New("the storage is away")
	for name, test := range map[string]struct {
		app   string // of the pusher
		token string
		down  error // of the storage
		want  string
	}{
		"an app":                      {app: "Example Chat", want: "Example Chat"},
		"no name":                     {want: ""},
		"lines and marks":             {app: "Chat\r\nBcc: x\u202egro\u2066\x00\t ", want: "Chat Bcc: xgro"},
		"100 KB":                      {app: strings.Repeat("ü", 100<<10), want: strings.Repeat("ü", 59) + "…"},
		"the pusher is gone":          {token: tokens.Unsubscribe(alice, "gone@example.org"), app: "Example Chat", want: ""},
		"a phone of the same pushkey": {token: tokens.Unsubscribe(alice, "phone@example.org"), app: "Example Chat", want: ""},
		"the storage is away":         {app: "Example Chat", down: errDown, want: ""},
	} {
		m := newMemory()
		p, phone := ownPusher("a@example.org", pusher.Email, "PHONE"), ownPusher("phone@example.org", pusher.HTTP, "PHONE")
		p.AppDisplayName, phone.AppDisplayName = test.app, "Phone"
		m.set(t, alice, p)
		m.set(t, alice, phone)
		s := service.New(module.Stores{Pushers: loads{m, test.down}, Pushkeys: m.index()}, nil, service.Options{Policy: pusher.DefaultPolicy(), Mail: tokens})
		token := cmp.Or(test.token, tokens.Unsubscribe(alice, p.Pushkey))
		user, app, err := s.Host(s.Rules()).MailUser(t.Context(), token)
		if user != alice || app != test.want || err != nil {
			t.Errorf("%s: got %s, %q, %v", name, user, app, err)
		}
		if user, app, err := s.Host(s.Rules()).MailUser(t.Context(), token+"x"); user != "" || app != "" || fault.KindOf(err) != fault.InvalidParam {
			t.Errorf("%s, an invalid token: got %s, %q, %v", name, user, app, err)
		}
	}
}

// A link works after later sets of the pusher, also if it was stored before the domain of an
// address was kept in small letters.
func TestAnOldLinkStopsMails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := mail.NewTokens("sixteen bytes or more")
		for _, spelled := range []string{"a@example.org", "a@Example.org"} {
			for _, wait := range []time.Duration{0, 100 * 24 * time.Hour} {
				m, old := newMemory(), ownPusher(spelled, pusher.Email, "PHONE")
				old.Claim = time.Now().UnixMicro()
				m.Lists[alice] = pusher.NewList(old)
				m.Entries[old.Digest()] = pusher.Entry{Last: old.Claim, Users: []mxid.UserID{alice}, Address: true}
				link := tokens.Unsubscribe(alice, spelled)
				s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policyWithMail(), Mail: tokens})
				time.Sleep(wait)
				err := s.Pushers().Set(t.Context(), alice, old, pusher.KeepOthers)
				if held := m.held(alice); err != nil || !slices.Equal(held, []string{"a@example.org"}) {
					t.Errorf("%s, after %v: set are %q, %v", spelled, wait, held, err)
				}
				err = s.Host(s.Rules()).Unsubscribe(t.Context(), link)
				if held := m.held(alice); err != nil || held != nil {
					t.Errorf("%s, after %v: left are %q, %v", spelled, wait, held, err)
				}
			}
		}
	})
}

// A host that takes reports of a blocked sender for reports about addresses removes few pushers.
func TestBouncesRemoveFewPushersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, m := mail.NewTokens("sixteen bytes or more"), newMemory()
		policy := pusher.DefaultPolicy()
		policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
		stops := &stops{Observer: observe.None}
		s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policy, Mail: tokens, Observer: stops})
		const users = 30
		name := func(i int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@u%d:h", i)) }
		address := func(i int) string { return fmt.Sprintf("a@%d.example.org", i) }
		for i := range users {
			if err := s.Pushers().Set(t.Context(), name(i), ownPusher(address(i), pusher.Email, ""), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(24 * time.Hour)
		for minute := range 20 {
			for i := range users {
				host := s.Host(s.Rules())
				if err := host.MailBounced(t.Context(), tokens.Bounce(address(i))); err != nil && fault.KindOf(err) != fault.Unavailable {
					t.Fatal(err)
				}
			}
			left := 0
			for i := range users {
				if m.held(name(i)) != nil {
					left++
				}
			}
			if want := users - 4*(1+minute/10); left != want {
				t.Fatalf("after %d minutes: %d of %d users have a pusher, want %d", minute, left, users, want)
			}
			time.Sleep(time.Minute)
		}
		if stops.n != 2 {
			t.Errorf("%d reports", stops.n)
		}
	})
}

// Five accounts have many addresses that do not exist. Reports about others still remove pushers.
func TestFewAccountsDoNotStopBounces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, m := mail.NewTokens("sixteen bytes or more"), newMemory()
		policy := pusher.DefaultPolicy()
		policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
		s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policy, Mail: tokens})
		set := func(user mxid.UserID, address string) {
			if err := s.Pushers().Set(t.Context(), user, ownPusher(address, pusher.Email, ""), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
		}
		const accounts, addresses = 5, 20
		address := func(i, n int) string { return fmt.Sprintf("dead%d@%d.example.org", n, i) }
		for i := range accounts {
			for n := range addresses {
				set(mxid.UserID(fmt.Sprintf("@u%d:h", i)), address(i, n))
			}
		}
		set(bob, "bob@example.org")
		time.Sleep(24 * time.Hour)
		host := s.Host(s.Rules())
		for n := range addresses {
			for i := range accounts {
				_ = host.MailBounced(t.Context(), tokens.Bounce(address(i, n)))
			}
			if err := host.MailBounced(t.Context(), tokens.Bounce("bob@example.org")); err == nil && m.held(bob) == nil {
				return
			}
			time.Sleep(10 * time.Minute)
		}
		t.Errorf("a pusher is not removed in %d windows", addresses)
	})
}

// stops counts reports of the limit.
type stops struct {
	observe.Observer
	n int
}

func (s *stops) Report(problem observe.Problem, _ error) {
	if problem == observe.TooManyRejections {
		s.n++
	}
}

// A user who has made room in the mailbox sets the pusher again. Reports of older mails still come.
func TestALateBounceKeepsAPusherThatWasSetAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, m := mail.NewTokens("sixteen bytes or more"), newMemory()
		p := ownPusher("a@example.org", pusher.Email, "PHONE")
		policy := pusher.DefaultPolicy()
		policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
		s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policy, Mail: tokens})
		for day, want := range []int{0, 1} {
			bounce := tokens.Bounce(p.Pushkey)
			time.Sleep(time.Duration(day) * 24 * time.Hour)
			if err := s.Pushers().Set(t.Context(), alice, p, pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
			if err := s.Host(s.Rules()).MailBounced(t.Context(), bounce); err != nil {
				t.Fatal(err)
			}
			if list, err := s.Pushers().List(t.Context(), alice); err != nil || list.Len() != want {
				t.Errorf("day %d: %d pushers, %v", day, list.Len(), err)
			}
		}
	})
}

// A user with many addresses, whose pushers are set anew, repeats reports of old mails.
func TestReportsOfOneUserStopNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, m := mail.NewTokens("sixteen bytes or more"), newMemory()
		s := service.New(module.Stores{Pushers: m, Pushkeys: m.index()}, nil, service.Options{Policy: policyWithMail(), Mail: tokens})
		set := func(user mxid.UserID, address string) (bounce string) {
			if err := s.Pushers().Set(t.Context(), user, ownPusher(address, pusher.Email, ""), pusher.KeepOthers); err != nil {
				t.Fatal(err)
			}
			return tokens.Bounce(address)
		}
		host := s.Host(s.Rules())
		for _, again := range []time.Duration{0, 24 * time.Hour} {
			var bounces []string
			for i := range 10 {
				bounces = append(bounces, set(alice, fmt.Sprintf("a%d@example.org", i)))
			}
			bounce := set(bob, "b@example.org")
			time.Sleep(again)
			if again > 0 {
				for i := range 10 {
					set(alice, fmt.Sprintf("a%d@example.org", i))
				}
			}
			for _, bounce := range bounces {
				if err := host.MailBounced(t.Context(), bounce); err != nil {
					t.Errorf("after %v: %v", again, err)
				}
			}
			if err := host.MailBounced(t.Context(), bounce); err != nil || m.held(bob) != nil {
				t.Errorf("after %v: bob has %q, %v", again, m.held(bob), err)
			}
		}
	})
}
