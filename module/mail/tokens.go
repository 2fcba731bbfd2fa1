package mail

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/pushfx/pushfx/module/internal/signed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// How long tokens are valid.
const (
	UnsubscribeFor = 365 * 24 * time.Hour
	BounceFor      = 14 * 24 * time.Hour
)

// Tokens makes and checks the tokens of mails. A nil *Tokens takes no token as valid.
type Tokens struct{ key []byte }

// NewTokens returns the tokens of a [Config.Key].
func NewTokens(key string) *Tokens { return &Tokens{[]byte(key)} }

// Grant is what a valid token allows: to remove a pusher.
type Grant struct {
	User    mxid.UserID   // empty for a bounce, which is about all users with the address
	Pushkey pusher.Digest // the address, as the index of pushkeys names it
	Until   time.Time     // the end of the day (UTC) of the mail
}

// A token has a code of 8 bytes, the day, and the digest of the address. In links the user id
// follows. A token without it has 56 letters and digits, since the name before the @ of
// an address has at most 64 bytes (RFC 5321, 4.5.3.1.1). It does not change within a day, since
// servers that greylist know a repeated mail by its sender.
const (
	daySize   = 2
	fixedSize = daySize + sha256.Size

	day = 24 * time.Hour
)

// Unsubscribe returns the token of the link that stops mails.
func (t *Tokens) Unsubscribe(user mxid.UserID, address string) string {
	return t.issue("unsubscribe", user, address)
}

// Bounce returns the token of a mail's envelope.
func (t *Tokens) Bounce(address string) string { return t.issue("bounce", "", address) }

// ReadUnsubscribe returns what the token of a link allows, if it is valid.
func (t *Tokens) ReadUnsubscribe(token string) (Grant, bool) {
	return t.check("unsubscribe", token, UnsubscribeFor)
}

// ReadBounce returns what the token of a bounced mail allows, if it is valid.
func (t *Tokens) ReadBounce(token string) (Grant, bool) { return t.check("bounce", token, BounceFor) }

func (t *Tokens) issue(purpose string, user mxid.UserID, address string) string {
	head := binary.BigEndian.AppendUint16(nil, uint16(time.Now().Unix()/int64(day/time.Second)))
	digest, _ := base64.RawURLEncoding.DecodeString(string(pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}.Digest()))
	return signed.Token(t.key, purpose, append(append(head, digest...), user...))
}

func (t *Tokens) check(purpose, token string, valid time.Duration) (Grant, bool) {
	if t == nil {
		return Grant{}, false
	}
	read, ok := signed.Read(t.key, purpose, token)
	if !ok || len(read) < fixedSize {
		return Grant{}, false
	}
	until := time.Unix(0, 0).Add(time.Duration(binary.BigEndian.Uint16(read)+1) * day)
	digest := base64.RawURLEncoding.EncodeToString(read[daySize:fixedSize])
	return Grant{mxid.UserID(read[fixedSize:]), pusher.Digest(digest), until}, time.Since(until) <= valid
}
