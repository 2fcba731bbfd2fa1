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

// Others says what becomes of other users' pushers of a key when a pusher is
// set ("append" of the Matrix specification, "POST /pushers/set").
type Others string

// The values.
const (
	RemoveOthers Others = "remove" // "append": false, the specification's default
	KeepOthers   Others = "keep"   // "append": true
)

// Claim returns the claim of that number of a pusher that is set so.
func (o Others) Claim(number int64) Claim {
	c := Claim{Number: number}
	if o == RemoveOthers {
		c.Removes = number
	}
	return c
}

// Digest names a key without telling it: SHA-256 of [Key.Field], in base64 for
// URLs. It may be logged.
type Digest string

// Validate reports what keeps the digest from being one.
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

// Claim is a user's claim to a key: its place among all claims to that key.
// The user's pusher of the key carries it.
type Claim struct {
	// Number grows with every claim to the key: the time of the claim in
	// microseconds since 1970, or one more than the last. 0 is no claim.
	Number int64

	// Removes says that other users' pushers of the key are to go whose claims
	// have a smaller number. It is that of the user's last claim that removes
	// others, 0 if there was none.
	Removes int64
}

// Join returns the claim of a pusher that was set with both, and the number of
// the one that it no longer needs.
func (c Claim) Join(d Claim) (joined Claim, spare int64) {
	return Claim{max(c.Number, d.Number), max(c.Removes, d.Removes)}, min(c.Number, d.Number)
}

// Owner is a user with the number of a claim to a key.
type Owner struct {
	User  mxid.UserID
	Claim int64
}

// Claims are the users who may have a pusher of a key: nobody else has one,
// but some may not have theirs yet, or no longer. A user has a claim for each
// request that is under way, and one for the pusher. The zero value has none.
// Methods that change it are not safe for concurrent use with others.
type Claims struct{ owners []Owner }

// NewClaims returns the given claims, each with a number of its own.
func NewClaims(owners ...Owner) Claims { return Claims{slices.Clone(owners)} }

// Owners returns the claims, in no particular order. The slice is read-only.
func (c *Claims) Owners() []Owner { return slices.Clip(c.owners) }

// Users returns the users who claim the key.
func (c *Claims) Users() []mxid.UserID {
	var users []mxid.UserID
	for _, owner := range c.owners {
		if !slices.Contains(users, owner.User) {
			users = append(users, owner.User)
		}
	}
	return users
}

// Last returns the number of a user's last claim, and that of the last of all
// others; 0 is none.
func (c *Claims) Last(user mxid.UserID) (own, others int64) {
	for _, owner := range c.owners {
		if owner.User == user {
			own = max(own, owner.Claim)
		} else {
			others = max(others, owner.Claim)
		}
	}
	return own, others
}

// Newest returns the number of the last claim, 0 if there is none.
func (c *Claims) Newest() (number int64) {
	for _, owner := range c.owners {
		number = max(number, owner.Claim)
	}
	return number
}

// Add adds a claim of a user that comes after all others, at a time in
// microseconds since 1970, and returns its number.
func (c *Claims) Add(user mxid.UserID, now int64) int64 {
	number := max(now, c.Newest()+1)
	c.owners = append(slices.Clip(c.owners), Owner{user, number})
	return number
}

// AddFirst adds a claim of a user that comes before every claim that [Claims.Add]
// makes, whenever that is, and returns its number. It is for a pusher that the
// user had before there were claims.
func (c *Claims) AddFirst(user mxid.UserID) int64 {
	number := int64(1)
	for slices.ContainsFunc(c.owners, func(o Owner) bool { return o.Claim == number }) {
		number++
	}
	c.owners = append(slices.Clip(c.owners), Owner{user, number})
	return number
}

// Restore adds a claim that has its number already, unless it is there. It
// reports false where another user has a claim of that number.
func (c *Claims) Restore(claim Owner) bool {
	i := slices.IndexFunc(c.owners, func(o Owner) bool { return o.Claim == claim.Claim })
	if i >= 0 {
		return c.owners[i] == claim
	}
	c.owners = append(slices.Clip(c.owners), claim)
	return true
}

// Release takes back a claim.
func (c *Claims) Release(claim Owner) {
	if slices.Contains(c.owners, claim) {
		c.owners = slices.DeleteFunc(slices.Clone(c.owners), func(o Owner) bool { return o == claim })
	}
}

// CheckSharing refuses, with [fault.InvalidParam], claims that have grown from
// before users to more than the limit.
func (l Policy) CheckSharing(before int, c *Claims) error {
	if n := len(c.Users()); n > before && n > l.MaxSharers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A pushkey is shared by at most %d users.", l.MaxSharers))
	}
	return nil
}
