package pusher

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// Others tells whether setting a pusher removes other users' pushers of the same key
// ("append" of the Matrix specification, "POST /pushers/set").
type Others string

// The values of [Others].
const (
	RemoveOthers Others = "remove" // "append": false, the specification's default
	KeepOthers   Others = "keep"   // "append": true

	// Imported is for a pusher from another server. It keeps the pushers of other users, is
	// refused if another user has taken the key, keeps its SetAt, and does not replace a
	// pusher that the user has.
	Imported Others = "imported"
)

// Digest identifies a key without revealing it, so it may be logged: SHA-256 of
// [Key.Field], in base64 for URLs.
type Digest string

// Validate refuses a text that is not a digest.
func (d Digest) Validate() error {
	if sum, err := base64.RawURLEncoding.DecodeString(string(d)); err != nil || len(sum) != sha256.Size {
		return errors.New("not a digest of a pushkey")
	}
	return nil
}

// Digest returns the key's digest.
func (k Key) Digest() Digest {
	sum := sha256.Sum256([]byte(k.Field()))
	return Digest(base64.RawURLEncoding.EncodeToString(sum[:]))
}

// Holder is a user with the number of the user's last claim to a key.
type Holder struct {
	User mxid.UserID

	// Number orders the claims to a key. It is the time of the claim in microseconds since
	// 1970, or one more than the last number. The user's pusher of the key stores it, see
	// [Pusher.Claim].
	Number int64
}

// Entry decides whose pushers of one key are visible. A set with [RemoveOthers] takes the
// key: other holders become losers, whose stored pushers are hidden. The zero value is
// the entry of a key without users. Methods that change it are not safe for concurrent
// use.
type Entry struct {
	Taken   int64    // number of the last claim that took the key, 0 if none did
	Holders []Holder // at most one for each user, in no particular order; do not change the slice

	// Losers are users who may still have a pusher stored, with a number that is not
	// greater. No user is both a holder and a loser. Do not change the slice.
	Losers []Holder
}

// Number returns the number of a holder, or 0.
func (e *Entry) Number(user mxid.UserID) int64 {
	if i := indexOf(e.Holders, user); i >= 0 {
		return e.Holders[i].Number
	}
	return 0
}

// Knows reports whether a user is a holder or a loser.
func (e *Entry) Knows(user mxid.UserID) bool {
	return indexOf(e.Holders, user) >= 0 || indexOf(e.Losers, user) >= 0
}

// Shows reports whether a user's stored pusher of the key with the claim is visible: the
// user holds the key, or the key was not taken since.
func (e *Entry) Shows(user mxid.UserID, claim int64) bool {
	return claim >= e.Taken || e.Number(user) > 0
}

// Keeps reports whether a set by the user can leave the entry as it is, if the user's
// stored pusher has the number of the holder.
func (e *Entry) Keeps(user mxid.UserID, others Others) bool {
	number := e.Number(user)
	return number > 0 && (others == KeepOthers || len(e.Holders) == 1 && number == e.Taken && !e.showsLoser())
}

// showsLoser reports whether a loser may have a visible pusher: a removal that did not end
// has left it.
func (e *Entry) showsLoser() bool {
	return slices.ContainsFunc(e.Losers, func(h Holder) bool { return h.Number >= e.Taken })
}

// IsTakenFrom reports whether a holder other than the user has taken the key.
func (e *Entry) IsTakenFrom(user mxid.UserID) bool {
	return slices.ContainsFunc(e.Holders, func(h Holder) bool { return h.User != user && h.Number == e.Taken })
}

// Claim makes the user a holder, the only one with [RemoveOthers], and returns the number
// of the claim, which is greater than all numbers before. Now is in microseconds since
// 1970.
func (e *Entry) Claim(user mxid.UserID, others Others, now int64) int64 {
	number := max(now, e.Last()+1)
	if others == Imported && len(e.Holders) == 0 && e.showsLoser() {
		e.Taken = number
		number++
	}
	e.Losers = without(e.Losers, user)
	left := without(e.Holders, user)
	if others == RemoveOthers {
		e.Losers, left = append(slices.Clip(e.Losers), left...), nil
		e.Taken = number
	}
	e.Holders = append(slices.Clip(left), Holder{user, number})
	return number
}

// Release makes a holder with this number a loser.
func (e *Entry) Release(h Holder) {
	if slices.Contains(e.Holders, h) {
		e.Holders = without(e.Holders, h.User)
		e.Losers = append(slices.Clip(e.Losers), h)
	}
}

// Restore makes a loser a holder again, whose pusher has stayed, unless the key was taken
// since.
func (e *Entry) Restore(h Holder) {
	if slices.Contains(e.Losers, h) && h.Number >= e.Taken {
		e.Losers = without(e.Losers, h.User)
		e.Holders = append(slices.Clip(e.Holders), h)
	}
}

// Remove removes a user.
func (e *Entry) Remove(user mxid.UserID) {
	e.Holders, e.Losers = without(e.Holders, user), without(e.Losers, user)
}

// Record adds a user with a stored pusher that the entry does not know: as a holder, or as
// a loser if the key was taken since.
func (e *Entry) Record(h Holder) {
	switch {
	case e.Knows(h.User):
	case e.Shows(h.User, h.Number):
		e.Holders = append(slices.Clip(e.Holders), h)
	default:
		e.Losers = append(slices.Clip(e.Losers), h)
	}
}

// Forget removes losers, whose pushers are removed.
func (e *Entry) Forget(losers []Holder) {
	e.Losers = slices.DeleteFunc(slices.Clone(e.Losers), func(h Holder) bool { return slices.Contains(losers, h) })
}

// IsOver reports whether the entry may expire: the key has no holder, and at most one user,
// the last holder, has a pusher left for a moment.
func (e *Entry) IsOver() bool { return len(e.Holders) == 0 && len(e.Losers) <= 1 }

// Equal reports whether both entries are equal.
func (e *Entry) Equal(other Entry) bool {
	return e.Taken == other.Taken && slices.Equal(e.Holders, other.Holders) && slices.Equal(e.Losers, other.Losers)
}

// Last returns the greatest number of the entry, or 0.
func (e *Entry) Last() int64 {
	last := e.Taken
	for _, all := range [][]Holder{e.Holders, e.Losers} {
		for _, h := range all {
			last = max(last, h.Number)
		}
	}
	return last
}

// Lost returns the holders of e from whom another user has taken the key in next.
func (e *Entry) Lost(next Entry) (users []mxid.UserID) {
	if next.Taken == e.Taken {
		return nil
	}
	for _, h := range e.Holders {
		if next.Number(h.User) == 0 {
			users = append(users, h.User)
		}
	}
	return users
}

func indexOf(all []Holder, user mxid.UserID) int {
	return slices.IndexFunc(all, func(h Holder) bool { return h.User == user })
}

func without(all []Holder, user mxid.UserID) []Holder {
	return slices.DeleteFunc(slices.Clone(all), func(h Holder) bool { return h.User == user })
}

// CheckSharing refuses, with [fault.InvalidParam], more holders than the limit, unless
// there are no more than before.
func (l Policy) CheckSharing(before, after Entry) error {
	if n := len(after.Holders); n > len(before.Holders) && n > l.MaxSharers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A pushkey is shared by at most %d users.", l.MaxSharers))
	}
	return nil
}
