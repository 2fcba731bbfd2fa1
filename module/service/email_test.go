package service_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
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
