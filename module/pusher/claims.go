package pusher

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// Others says what becomes of other users' pushers of a key when a pusher is
// set ("append" of the Matrix specification, "POST /pushers/set").
type Others string

// The values, as they are stored.
const (
	RemoveOthers Others = "remove" // "append": false, the specification's default
	KeepOthers   Others = "keep"   // "append": true
)

// Digest names a key without telling it: SHA-256 of [Key.Field], in base64 for
// URLs. It may be logged.
type Digest string

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

	Others Others
}

// Owner is a user with the number of their last claim to a key.
type Owner struct {
	User  mxid.UserID
	Claim int64
}

// Claims are the users who may have a pusher of a key: nobody else has one,
// but some may not have theirs yet, or no longer. The zero value has none.
// Methods that change it are not safe for concurrent use with others.
type Claims struct{ owners []Owner }

// NewClaims returns the claims of the given owners, one for each user.
func NewClaims(owners ...Owner) Claims { return Claims{slices.Clone(owners)} }

// Owners returns the users who claim the key, in no particular order. The
// slice is read-only.
func (c *Claims) Owners() []Owner { return slices.Clip(c.owners) }

// Users returns the users who claim the key.
func (c *Claims) Users() []mxid.UserID {
	users := make([]mxid.UserID, len(c.owners))
	for i, owner := range c.owners {
		users[i] = owner.User
	}
	return users
}

// IsOnly reports whether a user claims the key, and nobody else.
func (c *Claims) IsOnly(user mxid.UserID) bool {
	return len(c.owners) == 1 && c.owners[0].User == user
}

// Add makes a claim of a user the last one, at a time in microseconds since
// 1970, and returns its number.
func (c *Claims) Add(user mxid.UserID, now int64) int64 {
	owners := slices.DeleteFunc(slices.Clone(c.owners), func(o Owner) bool { return o.User == user })
	number := max(now, 1)
	for _, owner := range c.owners {
		number = max(number, owner.Claim+1)
	}
	c.owners = append(owners, Owner{user, number})
	return number
}

// Release takes back a claim, unless its user has made another since.
func (c *Claims) Release(claim Owner) {
	if slices.Contains(c.owners, claim) {
		c.owners = slices.DeleteFunc(slices.Clone(c.owners), func(o Owner) bool { return o == claim })
	}
}

// CheckSharing refuses, with [fault.InvalidParam], claims that have grown from
// before users to more than the limit.
func (l Policy) CheckSharing(before int, c *Claims) error {
	if n := len(c.owners); n > before && n > l.MaxSharers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A pushkey is shared by at most %d users.", l.MaxSharers))
	}
	return nil
}
