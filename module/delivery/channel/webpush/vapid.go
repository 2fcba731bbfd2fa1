package webpush

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/internal/bounded"
	"github.com/pushfx/pushfx/module/pusher"
)

// Config enables web push. All hosts have the same one.
type Config struct {
	// Key is the private key of P-256 by which push services know the homeserver (VAPID, RFC 8292), as
	// PEM or as 32 bytes in base64url; "pushctl vapid-key" makes one. Keep it: with another key, all
	// push subscriptions end. Default empty: no web push.
	Key string

	// Subject is how push services reach the operators: "mailto:" or "https:" with a domain. Required
	// with a Key.
	Subject string

	// AllowedPrefixes are non-public addresses that endpoints may have, for example of a push service
	// in the host's network. Any user can post to any path there. Default none.
	AllowedPrefixes []netip.Prefix
}

// IsOn reports whether web push is configured.
func (c Config) IsOn() bool { return c.Key != "" || c.Subject != "" }

// Validate joins the errors of the fields. Each says what to do.
func (c Config) Validate() error {
	_, err := c.key()
	if found := subjects.FindStringSubmatch(c.Subject); found == nil || strings.EqualFold(found[1], "localhost") {
		err = errors.Join(err, fmt.Errorf(`%s is %q, want "mailto:" or "https:" with a domain of the Internet, such as `+
			`"mailto:admin@example.org": push services reject others`, "Subject", c.Subject))
	}
	policy := pusher.DefaultPolicy()
	policy.AllowedPrefixes = c.AllowedPrefixes
	return errors.Join(err, policy.Validate())
}

// PublicKey is the key for clients, in base64url; empty without a valid Key.
func (c Config) PublicKey() string {
	key, err := c.key()
	if err != nil {
		return ""
	}
	point, _ := key.PublicKey.Bytes() // of a valid key
	return encode(point)
}

// NewKey returns a new [Config.Key], in base64url.
func NewKey() string {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // which never fails
	raw, _ := key.Bytes()
	return encode(raw)
}

func encode(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

// errKey does not have the Key.
var errKey = fmt.Errorf(`%s is not a private key of P-256 as PEM or as 32 bytes in base64url: make one with "pushctl vapid-key"`, "Key")

func (c Config) key() (key *ecdsa.PrivateKey, err error) {
	if block, _ := pem.Decode([]byte(c.Key)); block != nil {
		var parsed any
		if parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			parsed, _ = x509.ParseECPrivateKey(block.Bytes)
		}
		key, _ = parsed.(*ecdsa.PrivateKey)
	} else {
		raw, _ := base64.RawURLEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(c.Key), "="))
		key, _ = ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
	}
	if key == nil || key.Curve != elliptic.P256() {
		return nil, errKey
	}
	return key, nil
}

// subjects finds the top-level domain of a subject.
var subjects = regexp.MustCompile(`^(?:mailto:[^@<>\s]+@|https://)[^@/:\s]*[^@/:.\s]\.([^@/:.\s]+)(?:[/:]\S*)?$`)

const (
	tokenUse  = 11 * time.Hour
	tokenFor  = 12 * time.Hour // at most 24 h (RFC 8292, 2)
	maxTokens = 1000           // origins, which users name
)

// vapid identifies the homeserver to push services. It is safe for concurrent use.
type vapid struct {
	key             *ecdsa.PrivateKey
	public, subject string
	ackKey          []byte // of the tokens that activate pushers

	mu     sync.Mutex
	tokens bounded.Map[string, string] // headers by time and origin
}

// newVAPID returns nil for an invalid config.
func newVAPID(cfg Config) *vapid {
	key, err := cfg.key()
	if err != nil {
		return nil
	}
	v := &vapid{key: key, public: cfg.PublicKey(), subject: cfg.Subject, tokens: bounded.Map[string, string]{Limit: maxTokens}}
	raw, _ := key.Bytes()
	v.ackKey, _ = hkdf.Key(sha256.New, raw, nil, "pushfx activation of pushers", sha256.Size) // of a valid length
	return v
}

// authorization returns the header for an origin, the same one for hours.
func (v *vapid) authorization(origin string, now time.Time) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	began := now.Truncate(tokenUse)
	header, found := v.tokens.Get(began.String() + origin)
	if !found {
		header = "vapid t=" + v.sign(origin, began.Add(tokenFor)) + ", k=" + v.public
		v.tokens.Put(began.String()+origin, header, 1)
	}
	return header
}

// sign returns a JWT (RFC 8292, 2), signed by ES256 (RFC 7518, 3.4).
func (v *vapid) sign(origin string, until time.Time) string {
	claims, _ := json.Marshal(map[string]any{"aud": origin, "exp": until.Unix(), "sub": v.subject}) // strings and a number
	text := encode([]byte(`{"typ":"JWT","alg":"ES256"}`)) + "." + encode(claims)
	sum, signature := sha256.Sum256([]byte(text)), make([]byte, 64)
	r, s, _ := ecdsa.Sign(rand.Reader, v.key, sum[:]) // which never fails
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encode(signature)
}
