package pusher

import (
	"bytes"
	"crypto/ecdh"
	"encoding/base64"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// The kinds of web push (MSC4174): a pusher is the push subscription of a browser. Clients set the
// unstable kind.
const (
	WebPush         Kind = "webpush"
	UnstableWebPush Kind = "org.matrix.msc4174.webpush"
)

// NeedsAck reports whether pushers of a kind get nothing until their app has returned the token that
// was pushed to it; see [Pusher.Activated].
func (k Kind) NeedsAck() bool { return k == WebPush || k == UnstableWebPush }

// Subscription is what a pusher of a kind of web push says about a push subscription.
type Subscription struct {
	URL   string
	Point *ecdh.PublicKey // the pushkey
	Auth  []byte          // authentication secret (RFC 8291, 3.2)
}

const authBytes = 16

// ReadSubscription reads the subscription of a pusher. It does not check the URL.
func ReadSubscription(p Pusher) (s Subscription, err error) {
	if s.Point, err = ecdh.P256().NewPublicKey(readBase64(p.Pushkey)); err != nil {
		return s, fault.New(fault.InvalidParam, "pushkey must be the subscription's p256dh: a point of P-256 of 65 bytes in base64url.")
	}
	if s.URL, err = readText(p.Data, "url"); err != nil {
		return s, err
	}
	auth, err := readText(p.Data, "auth")
	if s.Auth = readBase64(auth); err == nil && len(s.Auth) != authBytes {
		err = fault.New(fault.InvalidParam, "data.auth must be the subscription's auth: 16 bytes in base64url.")
	}
	return s, err
}

// readBase64 returns nil for an invalid text.
func readBase64(text string) []byte {
	read, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil
	}
	return read
}

// IsSameSubscription reports whether both pushers have the same push subscription.
func (p Pusher) IsSameSubscription(other Pusher) bool {
	a, failed := ReadSubscription(p)
	b, err := ReadSubscription(other)
	return failed == nil && err == nil && p.Pushkey == other.Pushkey && a.URL == b.URL && bytes.Equal(a.Auth, b.Auth)
}

// CheckWebPush is for the kinds of web push in [Policy.Kinds].
func (l Policy) CheckWebPush(p Pusher) error {
	if _, err := ReadSubscription(p); err != nil {
		return err
	}
	return l.checkURL(p.Data, "")
}

// readText reads a string that data must have.
func readText(data, name string) (text string, err error) {
	r := strictjson.NewReader(data)
	found := false
	err = r.Object(func(member string) error {
		if member != name {
			return r.Skip()
		}
		if !r.IsString() {
			return strictjson.WrongShape("data."+name, "a string")
		}
		found = true
		text, err = r.String()
		return err
	})
	if err == nil && !found {
		err = strictjson.Missing("data." + name)
	}
	return text, err
}
