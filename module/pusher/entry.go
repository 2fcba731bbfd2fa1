package pusher

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"math"
	"slices"
	"strconv"

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

// Digest identifies a key without revealing it, so it may be logged: SHA-256 of the
// [Key.Field] of its canonical form, in base64 for URLs.
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
	sum := sha256.Sum256([]byte(k.Canonical().Field()))
	return Digest(base64.RawURLEncoding.EncodeToString(sum[:]))
}

// Entry decides which users' pushers of one key are visible. A set changes the entry, which
// gives it a number, and then stores the pusher with that number ([Pusher.Claim]). The zero
// value is the entry of a key without sets. Methods that change it are not safe for
// concurrent use.
type Entry struct {
	// Last is the number of the last set. A number is the time of its set in microseconds
	// since 1970, or one more than the number before.
	Last int64

	Taken int64 // number of the last set with [RemoveOthers], 0 without one

	// By is the user of that set, or empty when the user has left. If the user left within a minute
	// of the set, it is a digest of the user; see [Entry.Leave].
	By mxid.UserID

	// Users have set the key since it was taken and have not left, the newest first, and at
	// most [MaxUsers]. It tells whose caches to drop and whose hidden pushers to remove, and
	// does not decide about visibility. Do not change the slice.
	Users []mxid.UserID

	// Address says that the key is an email address. Its entry must stay while it has Users,
	// because a report of a bounced mail names only the address.
	Address bool
}

// MaxUsers bounds [Entry.Users].
const MaxUsers = 16

// EntryDays is how many days an entry must stay after its last change, unless it
// [Entry.Lasts].
const EntryDays = 90

// keptFor is the age, in microseconds, up to which a set can keep the number of the stored
// pusher. A set of an older one changes the entry, which then expires later.
const keptFor = 30 * 24 * 3600 * 1_000_000

// underWay is longer, in microseconds, than a set takes.
const underWay = 60 * 1_000_000

// Lasts reports whether the entry must never expire.
func (e *Entry) Lasts() bool { return e.Address && len(e.Users) > 0 }

// Shows reports whether a user's stored pusher of the key is visible: the key was not taken
// since, or the user has taken it and has not stored the new pusher yet.
func (e *Entry) Shows(user mxid.UserID, claim int64) bool {
	return claim >= e.Taken || user == e.By || e.leftBy(user) == e.By
}

// leftBy is the name in By of a user who has left and may have an earlier set under way.
func (e *Entry) leftBy(user mxid.UserID) mxid.UserID {
	sum := sha256.Sum256(strconv.AppendInt([]byte(user+" "), e.Taken, 10))
	return mxid.UserID("left:" + base64.RawURLEncoding.EncodeToString(sum[:]))
}

// Keeps reports whether a set by the user can leave the entry as it is and keep the claim
// of the stored pusher. If it removes others, no other user may have set the key since the
// user took it. Now is in microseconds since 1970.
func (e *Entry) Keeps(user mxid.UserID, claim int64, others Others, now int64) bool {
	if claim <= now-keptFor || claim < e.Taken || claim > e.Last {
		return false
	}
	return others == KeepOthers || e.By == user && claim == e.Taken && claim == e.Last
}

// IsTakenFrom reports whether another user has taken the key and has not left.
func (e *Entry) IsTakenFrom(user mxid.UserID) bool {
	return e.By != user && slices.Contains(e.Users, e.By)
}

// Claim gives a set by the user its number. With [RemoveOthers] the set takes the key. An
// import gets the lowest number that is visible, so that it does not outdo a set of the user
// at the same time. Now is in microseconds since 1970.
func (e *Entry) Claim(user mxid.UserID, others Others, now int64) int64 {
	e.Last = max(now, e.Last+1)
	if others == RemoveOthers {
		e.Taken, e.By, e.Users = e.Last, user, nil
	}
	users := append([]mxid.UserID{user}, without(e.Users, user)...)
	if len(users) > MaxUsers {
		if users[MaxUsers] == e.By {
			users[MaxUsers-1] = e.By
		}
		users = users[:MaxUsers]
	}
	e.Users = users
	if others == Imported {
		return max(e.Taken, 1)
	}
	return e.Last
}

// Leave removes the user's name after the user's pusher with the claim has gone. A later
// set of the user that took the key stays the last one. For a minute after its set, a digest
// of the user replaces By: an earlier set of the user may still be under way, and its pusher would
// otherwise be visible first, and hidden then. Now is in microseconds since 1970.
func (e *Entry) Leave(user mxid.UserID, claim, now int64) {
	e.Users = without(e.Users, user)
	if e.By != user || e.Taken > claim {
		return
	}
	if e.By = ""; e.Taken > now-underWay {
		e.By = e.leftBy(user)
	}
}

// Forget removes the user's name, whatever is under way.
func (e *Entry) Forget(user mxid.UserID) { e.Leave(user, math.MaxInt64, math.MaxInt64) }

// Equal reports whether both entries are equal.
func (e *Entry) Equal(other Entry) bool {
	return e.Last == other.Last && e.Taken == other.Taken && e.By == other.By && e.Address == other.Address && slices.Equal(e.Users, other.Users)
}

// Lost returns the users of e from whom another user has taken the key in next.
func (e *Entry) Lost(next Entry) []mxid.UserID {
	if next.Taken == e.Taken {
		return nil
	}
	return without(e.Users, next.By)
}

func without(users []mxid.UserID, user mxid.UserID) []mxid.UserID {
	return slices.DeleteFunc(slices.Clone(users), func(u mxid.UserID) bool { return u == user })
}
