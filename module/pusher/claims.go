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

	// Imported is for a pusher from another server. Its claim precedes the claims of other
	// users, so it never removes their pushers. It is refused if another user has taken the
	// key, keeps its SetAt, and does not replace a pusher that the user has.
	Imported Others = "imported"
)

// Claim returns a claim with the given number. With [RemoveOthers], the claim also
// removes other users' pushers.
func (o Others) Claim(number int64) Claim {
	c := Claim{Number: number}
	if o == RemoveOthers {
		c.Removes = number
	}
	return c
}

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

// Claim is a user's claim to a key. The user's pusher of that key stores it.
type Claim struct {
	// Number orders the claims to the key. It is the time of the claim in microseconds
	// since 1970, or one more than the last number. 0 is no claim.
	Number int64

	// Removes is the number of the user's last claim with [RemoveOthers], or 0. It
	// removes other users' pushers of the key whose claims have smaller numbers.
	Removes int64
}

// Join merges two claims of a user to one key, after two requests have set the pusher.
// The pusher keeps the joined claim; the claim with the number spare is to be released.
func (c Claim) Join(d Claim) (joined Claim, spare int64) {
	return Claim{max(c.Number, d.Number), max(c.Removes, d.Removes)}, min(c.Number, d.Number)
}

// Owner is one claim: its user and its number.
type Owner struct {
	User  mxid.UserID
	Claim int64
}

// Claims are all users' claims to one key. Every user with a pusher of the key has a
// claim, and another for each request in progress; so a user with a claim may have no
// pusher. The zero value has no claims. Methods that change claims are not safe for
// concurrent use.
type Claims struct{ owners []Owner }

// NewClaims returns the given claims. Their numbers must differ.
func NewClaims(owners ...Owner) Claims { return Claims{slices.Clone(owners)} }

// Owners returns the claims in no particular order. Do not change the slice.
func (c *Claims) Owners() []Owner { return slices.Clip(c.owners) }

// Users returns the users with claims.
func (c *Claims) Users() []mxid.UserID {
	var users []mxid.UserID
	for _, owner := range c.owners {
		if !slices.Contains(users, owner.User) {
			users = append(users, owner.User)
		}
	}
	return users
}

// Last returns the number of the user's last claim and that of the last claim of any
// other user, each 0 without claims.
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

// Newest returns the number of the last claim, or 0.
func (c *Claims) Newest() (number int64) {
	for _, owner := range c.owners {
		number = max(number, owner.Claim)
	}
	return number
}

// Add adds a claim after all others and returns its number. Now is in microseconds
// since 1970.
func (c *Claims) Add(user mxid.UserID, now int64) int64 {
	number := max(now, c.Newest()+1)
	c.owners = append(slices.Clip(c.owners), Owner{user, number})
	return number
}

// AddFirst adds a claim before all claims of [Claims.Add] and returns its number. It is
// for imported pushers, which are older than all claims.
func (c *Claims) AddFirst(user mxid.UserID) int64 {
	number := int64(1)
	for slices.ContainsFunc(c.owners, func(o Owner) bool { return o.Claim == number }) {
		number++
	}
	c.owners = append(slices.Clip(c.owners), Owner{user, number})
	return number
}

// Restore adds a stored claim unless it exists. It returns false if another user has
// its number.
func (c *Claims) Restore(claim Owner) bool {
	i := slices.IndexFunc(c.owners, func(o Owner) bool { return o.Claim == claim.Claim })
	if i >= 0 {
		return c.owners[i] == claim
	}
	c.owners = append(slices.Clip(c.owners), claim)
	return true
}

// Release removes a claim.
func (c *Claims) Release(claim Owner) {
	if slices.Contains(c.owners, claim) {
		c.owners = slices.DeleteFunc(slices.Clone(c.owners), func(o Owner) bool { return o == claim })
	}
}

// CheckSharing refuses, with [fault.InvalidParam], more users with claims than the
// limit, unless there are no more users than before.
func (l Policy) CheckSharing(before int, c *Claims) error {
	if n := len(c.Users()); n > before && n > l.MaxSharers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A pushkey is shared by at most %d users.", l.MaxSharers))
	}
	return nil
}
