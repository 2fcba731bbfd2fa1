package mail

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// How long tokens are valid.
const (
	UnsubscribeFor = 365 * 24 * time.Hour
	BounceFor      = 14 * 24 * time.Hour
)

// Tokens makes and checks the tokens of mails. A token names the address by a keyed digest, so
// that no log of links has addresses.
type Tokens struct{ key []byte }

// NewTokens returns the tokens of a [Config.Key].
func NewTokens(key string) *Tokens { return &Tokens{[]byte(key)} }

// Grant is what a valid token allows: to remove a pusher of a user.
type Grant struct {
	User  mxid.UserID
	Until time.Time // the end of the day (UTC) of the mail

	tokens *Tokens
	digest string
}

// IsFor reports whether the token is about an address.
func (g Grant) IsFor(address string) bool {
	return hmac.Equal([]byte(g.digest), g.tokens.sum("address", address)[:digestSize])
}

// A token is a code of macSize bytes and a head: the end of the day and the digest of the
// address. In links the user id follows. The token of a bounce is without it, since the name of
// an address has at most 64 bytes (RFC 5321, 4.5.3.1.1), and without capital letters. It does
// not change within a day, since servers that greylist know a repeated mail by its sender.
const (
	macSize    = 16
	timeSize   = 4
	digestSize = 8
	day        = 24 * time.Hour
	fixedSize  = macSize + timeSize + digestSize
)

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Unsubscribe returns the token of the link that stops mails.
func (t *Tokens) Unsubscribe(user mxid.UserID, address string) string {
	return base64.RawURLEncoding.EncodeToString(append(t.issue("unsubscribe", user, address), user...))
}

// Bounce returns the token of a mail's envelope: 45 lower-case letters and digits.
func (t *Tokens) Bounce(user mxid.UserID, address string) string {
	return lowerBase32.EncodeToString(t.issue("bounce", user, address))
}

// ReadUnsubscribe returns what the token of a link allows, if it is valid.
func (t *Tokens) ReadUnsubscribe(token string) (Grant, bool) {
	read, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(read) < fixedSize {
		return Grant{}, false
	}
	return t.check("unsubscribe", mxid.UserID(read[fixedSize:]), read[:fixedSize], UnsubscribeFor)
}

// ReadBounce returns what the token of a bounced mail to the user allows, if it is valid.
func (t *Tokens) ReadBounce(user mxid.UserID, token string) (Grant, bool) {
	read, err := lowerBase32.DecodeString(strings.ToLower(token))
	if err != nil || len(read) != fixedSize {
		return Grant{}, false
	}
	return t.check("bounce", user, read, BounceFor)
}

func (t *Tokens) issue(purpose string, user mxid.UserID, address string) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(time.Now().Truncate(day).Add(day).Unix()))
	head = append(head, t.sum("address", address)[:digestSize]...)
	return append(t.sum(purpose, string(head)+string(user))[:macSize:macSize], head...)
}

func (t *Tokens) check(purpose string, user mxid.UserID, read []byte, valid time.Duration) (Grant, bool) {
	mac, head := read[:macSize], read[macSize:fixedSize]
	isOurs := hmac.Equal(mac, t.sum(purpose, string(head)+string(user))[:macSize])
	until := time.Unix(int64(binary.BigEndian.Uint32(head)), 0)
	return Grant{user, until, t, string(head[timeSize:])}, isOurs && time.Since(until) <= valid
}

func (t *Tokens) sum(purpose, text string) []byte {
	code := hmac.New(sha256.New, t.key)
	code.Write([]byte(purpose + "\x00" + text))
	return code.Sum(nil)
}
