package module

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// LeftError is the error of a call for many users that has not succeeded for some of them:
// of each call of [Notifier], and of [UnreadService.Add] and [UnreadService.Forget]. It has
// succeeded for all others, and the host repeats it for Users alone; see [Left]. Its kind is
// [fault.Unavailable].
type LeftError struct {
	// Users are left, in order: their storage is away, or a reply was lost.
	Users []mxid.UserID

	// Reasons has an error of each kind, for the log. Errors.Is with [fault.ErrNotConfirmed]
	// tells whether unread counts of some users are stored, but not as durably as configured.
	Reasons []error
}

// Error returns the number of users and the reasons, for the log.
func (e *LeftError) Error() string {
	var reasons []string
	for _, reason := range e.Reasons {
		reasons = append(reasons, fault.Details(reason))
	}
	slices.Sort(reasons)
	return fmt.Sprintf("users left: %d: %s", len(e.Users), strings.Join(slices.Compact(reasons), "; "))
}

// Unwrap returns the reasons.
func (e *LeftError) Unwrap() []error { return e.Reasons }

// Left returns the users for whom the host repeats a call, in order. Err is the error of one
// call, or several ones by [errors.Join]. All says that err does not name the users, so that
// the call is repeated for all users. After success and after a permanent error, no user is
// left.
func Left(err error) (users []mxid.UserID, all bool) {
	users, all = leftBy(err)
	slices.Sort(users)
	return slices.Compact(users), all
}

func leftBy(err error) (users []mxid.UserID, all bool) {
	switch e := err.(type) {
	case nil:
		return nil, false
	case *LeftError:
		return slices.Clone(e.Users), false
	case *fault.Error:
		return nil, !IsPermanent(e)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			some, isAll := leftBy(one)
			users, all = append(users, some...), all || isAll
		}
		return users, all
	case interface{ Unwrap() error }:
		return leftBy(e.Unwrap())
	}
	return nil, true
}

// IsPermanent reports whether an error of [Notifier.Decide] or [Notifier.Notify] is a fault
// of the event, so that the host drops it. After any other error the host repeats the call,
// see [Left]. Several errors by [errors.Join] are permanent if all of them are.
func IsPermanent(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *fault.Error:
		return e.Kind == fault.InvalidParam
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(one error) bool { return !IsPermanent(one) })
	}
	return IsPermanent(errors.Unwrap(err))
}

// Of returns the decisions for the given users, for a repetition; see [Left].
func (d Decisions) Of(users []mxid.UserID) Decisions {
	return of(d, users, func(one Decision) mxid.UserID { return one.User })
}

// MembersOf returns the given users among the members, for a repetition; see [Left].
func MembersOf(members []match.Member, users []mxid.UserID) []match.Member {
	return of(members, users, func(m match.Member) mxid.UserID { return m.User })
}

func of[T any](all []T, users []mxid.UserID, userOf func(T) mxid.UserID) (some []T) {
	wanted := make(map[mxid.UserID]struct{}, len(users))
	for _, user := range users {
		wanted[user] = struct{}{}
	}
	for _, one := range all {
		if _, found := wanted[userOf(one)]; found {
			some = append(some, one)
		}
	}
	return some
}
