package hosttest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
)

// Encode64 encodes keys.
var Encode64 = base64.RawURLEncoding.EncodeToString

// Browser is a push subscription with its push service.
type Browser struct {
	URL, App string
	Key      *ecdh.PrivateKey
	Auth     []byte
	Pushes   chan Push

	mu     sync.Mutex
	status int // of answers; 0 is 201
}

// Push is what a push service got.
type Push struct {
	Header http.Header
	Text   string // opened
}

// NewSubscription returns a subscription of which the caller is the push service.
func NewSubscription(t testing.TB, app string) *Browser {
	t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Browser{App: app, Key: key, Auth: []byte(rand.Text()[:16]), Pushes: make(chan Push, 1000)}
}

// NewBrowser starts a push service with a subscription.
func NewBrowser(t testing.TB, app string) *Browser {
	t.Helper()
	b := NewSubscription(t, app)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sealed, _ := io.ReadAll(r.Body)
		text, err := b.Open(sealed)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		status := b.status
		b.mu.Unlock()
		b.Pushes <- Push{r.Header, text}
		w.WriteHeader(max(status, http.StatusCreated))
	}))
	t.Cleanup(service.Close)
	b.URL = service.URL + "/1"
	return b
}

// Answer makes the push service answer a status.
func (b *Browser) Answer(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

// Open is what a browser does (RFC 8291, 3.4).
func (b *Browser) Open(sealed []byte) (string, error) {
	if len(sealed) < 86 {
		return "", fmt.Errorf("a push of %d bytes", len(sealed))
	}
	point, err := ecdh.P256().NewPublicKey(sealed[21:86])
	if err != nil {
		return "", err
	}
	shared, err := b.Key.ECDH(point)
	if err != nil {
		return "", err
	}
	derive := func(secret, salt []byte, info string, n int) (key []byte) {
		if err == nil {
			key, err = hkdf.Key(sha256.New, secret, salt, info, n)
		}
		return key
	}
	input := derive(shared, b.Auth, "WebPush: info\x00"+string(b.Key.PublicKey().Bytes())+string(sealed[21:86]), 32)
	block, _ := aes.NewCipher(derive(input, sealed[:16], "Content-Encoding: aes128gcm\x00", 16))
	gcm, _ := cipher.NewGCM(block)
	text, failed := gcm.Open(nil, derive(input, sealed[:16], "Content-Encoding: nonce\x00", 12), sealed[86:], nil)
	if err != nil || failed != nil {
		return "", fmt.Errorf("%v, %w", err, failed)
	}
	return strings.TrimRight(string(text), "\x00")[:len(strings.TrimRight(string(text), "\x00"))-1], nil
}

// Pusher is the body of POST /pushers/set.
func (b *Browser) Pusher(data string) string {
	return fmt.Sprintf(`{"kind":"org.matrix.msc4174.webpush","app_id":%q,"pushkey":%q,"app_display_name":"A","device_display_name":"D","lang":"en","data":{"url":%q,"auth":%q%s}}`,
		b.App, Encode64(b.Key.PublicKey().Bytes()), b.URL, Encode64(b.Auth), data)
}

// Receive returns the next push.
func (b *Browser) Receive(t testing.TB) Push {
	t.Helper()
	select {
	case p := <-b.Pushes:
		return p
	case <-time.After(Never):
		t.Fatal("no push")
		return Push{}
	}
}

// Token returns the token of the next push, which has nothing else.
func (b *Browser) Token(t testing.TB) string {
	t.Helper()
	p := b.Receive(t)
	var got map[string]string
	if err := json.Unmarshal([]byte(p.Text), &got); err != nil || len(got) != 2 || got["app_id"] != b.App || got["ack_token"] == "" {
		t.Fatalf("got %s, %v", p.Text, err)
	}
	return got["ack_token"]
}

// WantNothing checks that no push comes.
func (b *Browser) WantNothing(t testing.TB) {
	t.Helper()
	select {
	case p := <-b.Pushes:
		t.Errorf("got %s", p.Text)
	case <-time.After(1500 * time.Millisecond):
	}
}

// WithWebPush configures a host with web push to this machine.
func WithWebPush(c pushfx.Config) pushfx.Config {
	c = AllowLoopback(c)
	c.WebPush = webpush.Config{
		Key: "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw", Subject: "mailto:admin@example.org", AllowedPrefixes: c.PusherPolicy.AllowedPrefixes,
	}
	return c
}
