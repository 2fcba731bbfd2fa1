package module_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

func left(users ...mxid.UserID) error {
	return &module.LeftError{Users: users, Reasons: []error{module.Unavailable(io.EOF)}}
}

func TestWhoIsLeftAfterAnError(t *testing.T) {
	permanent, away := fault.New(fault.InvalidParam, "The event is too large."), module.Unavailable(io.EOF)
	for name, test := range map[string]struct {
		err       error
		left      []mxid.UserID
		all       bool
		permanent bool
	}{
		"success":                            {nil, nil, false, false},
		"users":                              {left("@b:x", "@a:x"), []mxid.UserID{"@a:x", "@b:x"}, false, false},
		"a wrapped error":                    {fmt.Errorf("notify: %w", left("@a:x")), []mxid.UserID{"@a:x"}, false, false},
		"two calls":                          {errors.Join(left("@b:x"), left("@a:x", "@b:x")), []mxid.UserID{"@a:x", "@b:x"}, false, false},
		"a call that names nobody":           {errors.Join(left("@a:x"), away), []mxid.UserID{"@a:x"}, true, false},
		"storage":                            {away, nil, true, false},
		"an error of the host":               {io.EOF, nil, true, false},
		"damaged data":                       {fault.New(fault.Database, "damaged"), nil, true, false},
		"a fault of the event":               {permanent, nil, false, true},
		"a wrapped fault of the event":       {fmt.Errorf("decide: %w", permanent), nil, false, true},
		"two faults of the event":            {errors.Join(permanent, fmt.Errorf("%w", permanent)), nil, false, true},
		"a fault of the event before users":  {errors.Join(permanent, left("@a:x")), []mxid.UserID{"@a:x"}, false, false},
		"a fault of the event after storage": {errors.Join(away, permanent), nil, true, false},
		"a fault of the event, then another": {errors.Join(permanent, io.EOF), nil, true, false},
		"storage because of a fault":         {module.Unavailable(permanent), nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, all := module.Left(test.err); !slices.Equal(got, test.left) || all != test.all {
				t.Errorf("left are %v, all: %t", got, all)
			}
			if got := module.IsPermanent(test.err); got != test.permanent {
				t.Errorf("is permanent: %t", got)
			}
		})
	}
}

func TestALeftErrorHasTheNumberAndTheKindOfItsReasons(t *testing.T) {
	err := fmt.Errorf("call: %w", &module.LeftError{Users: []mxid.UserID{"@a:x"}, Reasons: []error{
		module.Unavailable(io.EOF), module.Unavailable(fmt.Errorf("%w: 0 of 1 replicas", fault.ErrNotConfirmed)),
	}})
	const away = "The server cannot reach its storage, try again later.: "
	want := "call: users left: 1: " + away + "EOF; " + away + "the change is stored, but not confirmed: 0 of 1 replicas"
	for _, got := range []string{err.Error(), fault.Details(err)} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if fault.KindOf(err) != fault.Unavailable || !errors.Is(err, fault.ErrNotConfirmed) || !errors.Is(err, io.EOF) {
		t.Error(fault.Details(err))
	}
}

func TestDecisionsAndMembersAreCutDown(t *testing.T) {
	users := []mxid.UserID{"@a:x", "@b:x", "@c:x"}
	var decisions module.Decisions
	var members []match.Member
	for _, user := range users {
		decisions, members = append(decisions, module.Decision{User: user, RoomName: string(user)}), append(members, match.Member{User: user, DisplayName: string(user)})
	}
	for _, some := range [][]mxid.UserID{nil, {"@c:x", "@a:x"}, {"@d:x"}} {
		var want []mxid.UserID
		for _, user := range users {
			if slices.Contains(some, user) {
				want = append(want, user)
			}
		}
		var decided, are []mxid.UserID
		for _, d := range decisions.Of(some) {
			decided = append(decided, mxid.UserID(d.RoomName))
		}
		for _, m := range module.MembersOf(members, some) {
			are = append(are, mxid.UserID(m.DisplayName))
		}
		if !slices.Equal(decided, want) || !slices.Equal(are, want) {
			t.Errorf("%v: got %v and %v", some, decided, are)
		}
	}
}
