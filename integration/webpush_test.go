package integration

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

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const unstableAck = "/_matrix/client/unstable/org.matrix.msc4174/pushers/ack"

var encode64 = base64.RawURLEncoding.EncodeToString

// browser is a push subscription with its push service.
type browser struct {
	url, app string
	key      *ecdh.PrivateKey
	auth     []byte
	pushes   chan push

	mu     sync.Mutex
	status int // of answers; 0 is 201
}

type push struct {
	path   string
	header http.Header
	size   int
	text   string // opened
}

func newSubscription(t testing.TB, app string) *browser {
	t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{app: app, key: key, auth: []byte(rand.Text()[:16]), pushes: make(chan push, 1000)}
}

func newBrowser(t testing.TB, app string) *browser {
	t.Helper()
	b := newSubscription(t, app)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sealed, _ := io.ReadAll(r.Body)
		text, err := b.open(sealed)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		status := b.status
		b.mu.Unlock()
		b.pushes <- push{r.URL.Path, r.Header, len(sealed), text}
		w.WriteHeader(max(status, http.StatusCreated))
	}))
	t.Cleanup(service.Close)
	b.url = service.URL + "/1"
	return b
}

func (b *browser) answer(status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = status
}

// open is what a browser does (RFC 8291, 3.4).
func (b *browser) open(sealed []byte) (string, error) {
	if len(sealed) < 86 {
		return "", fmt.Errorf("a push of %d bytes", len(sealed))
	}
	point, err := ecdh.P256().NewPublicKey(sealed[21:86])
	if err != nil {
		return "", err
	}
	shared, err := b.key.ECDH(point)
	if err != nil {
		return "", err
	}
	derive := func(secret, salt []byte, info string, n int) (key []byte) {
		if err == nil {
			key, err = hkdf.Key(sha256.New, secret, salt, info, n)
		}
		return key
	}
	input := derive(shared, b.auth, "WebPush: info\x00"+string(b.key.PublicKey().Bytes())+string(sealed[21:86]), 32)
	block, _ := aes.NewCipher(derive(input, sealed[:16], "Content-Encoding: aes128gcm\x00", 16))
	gcm, _ := cipher.NewGCM(block)
	text, failed := gcm.Open(nil, derive(input, sealed[:16], "Content-Encoding: nonce\x00", 12), sealed[86:], nil)
	if err != nil || failed != nil {
		return "", fmt.Errorf("%v, %w", err, failed)
	}
	return strings.TrimRight(string(text), "\x00")[:len(strings.TrimRight(string(text), "\x00"))-1], nil
}

// pusher is the body of POST /pushers/set.
func (b *browser) pusher(data string) string {
	return fmt.Sprintf(`{"kind":"org.matrix.msc4174.webpush","app_id":%q,"pushkey":%q,"app_display_name":"A","device_display_name":"D","lang":"en","data":{"url":%q,"auth":%q%s}}`,
		b.app, encode64(b.key.PublicKey().Bytes()), b.url, encode64(b.auth), data)
}

// receive returns the next push.
func (b *browser) receive(t testing.TB) push {
	t.Helper()
	select {
	case p := <-b.pushes:
		return p
	case <-time.After(20 * time.Second):
		t.Fatal("no push")
		return push{}
	}
}

// token returns the token of the next push, which has nothing else.
func (b *browser) token(t testing.TB) string {
	t.Helper()
	p := b.receive(t)
	var got map[string]string
	if err := json.Unmarshal([]byte(p.text), &got); err != nil || len(got) != 2 || got["app_id"] != b.app || got["ack_token"] == "" {
		t.Fatalf("got %s, %v", p.text, err)
	}
	return got["ack_token"]
}

func (b *browser) wantNothing(t testing.TB) {
	t.Helper()
	select {
	case p := <-b.pushes:
		t.Errorf("got %s", p.text)
	case <-time.After(1500 * time.Millisecond):
	}
}

func ackOf(app, token string) string { return fmt.Sprintf(`{"app_id":%q,"ack_token":%q}`, app, token) }

func withWebPush(c pushfx.Config) pushfx.Config {
	c = allowLoopback(c)
	c.WebPush = webpush.Config{
		Key: "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw", Subject: "mailto:admin@example.org", AllowedPrefixes: c.PusherPolicy.AllowedPrefixes,
	}
	return c
}

// pushHost is a host with web push.
type pushHost struct {
	*host
	push  *pushfx.Push
	queue module.DeliveryQueue
}

func startPushHost(t *testing.T, server *redistest.Server) (h pushHost) {
	t.Helper()
	h.host = startHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(withWebPush), fx.Populate(&h.push, &h.queue))
	return h
}

func (h pushHost) notify(n int, user mxid.UserID) {
	h.t.Helper()
	if err := sendEvent(h.t.Context(), h.push.Notifier, message(n), user); err != nil {
		h.t.Fatal(err)
	}
}

func (h pushHost) set(user, body string, want int) {
	h.t.Helper()
	if got := h.do(user, http.MethodPost, v3+"/pushers/set", body); got.status != want || got.body != "{}" {
		h.t.Fatalf("got %s, want %d", got, want)
	}
}

// A pusher is inactive until its browser has returned the token that was pushed to it.
func TestABrowserIsNotifiedWhenItHasReturnedItsToken(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	h, other := startPushHost(t, server), startPushHost(t, server)
	b := newBrowser(t, "org.example.web")
	activated := func(want string) {
		t.Helper()
		if got := other.do(alice, http.MethodGet, v3+"/pushers", ""); !strings.Contains(got.body, `"kind":"org.matrix.msc4174.webpush"`) || !strings.Contains(got.body, `"activated":`+want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	h.set(alice, b.pusher(""), http.StatusCreated)
	token := b.token(t)
	activated("false")
	h.notify(1, alice)
	if log, err := h.queue.Log(t.Context(), alice); err != nil || len(log.Pushers) != 0 {
		t.Errorf("something waits for an inactive pusher: %+v, %v", log, err)
	}
	h.set(alice, b.pusher(""), http.StatusCreated)
	first, token := token, b.token(t)
	for name, step := range map[string]struct{ user, path, body, want string }{
		"another user's":      {bob, v3 + "/pushers/ack", ackOf(b.app, token), "404 "},
		"another app's":       {alice, v3 + "/pushers/ack", ackOf("other", token), "404 "},
		"of an earlier set":   {alice, v3 + "/pushers/ack", ackOf(b.app, first), `400 {"errcode":"M_UNKNOWN_ACTIVATION_TOKEN"`},
		"unknown":             {alice, r0 + "/pushers/ack", ackOf(b.app, "x"), `400 {"errcode":"M_UNKNOWN_ACTIVATION_TOKEN"`},
		"unknown, unstable":   {alice, unstableAck, ackOf(b.app, "x"), `400 {"errcode":"ORG.MATRIX.MSC4174_UNKNOWN_ACTIVATION_TOKEN"`},
		"no token":            {alice, unstableAck, `{"app_id":"x"}`, `400 {"errcode":"M_MISSING_PARAM"`},
		"a token of a number": {alice, unstableAck, `{"app_id":"x","ack_token":1}`, `400 {"errcode":"M_BAD_JSON"`},
		"no user":             {"", unstableAck, ackOf(b.app, token), `401 {"errcode":"M_MISSING_TOKEN"`},
		"another method":      {alice, unstableAck + "/x", "", `404 `},
	} {
		if got := other.do(step.user, http.MethodPost, step.path, step.body); !strings.HasPrefix(got.String(), step.want) {
			t.Errorf("%s: got %s", name, got)
		}
	}
	activated("false")
	for _, path := range []string{unstableAck, v3 + "/pushers/ack"} { // also again: the first answer may be lost
		if got := other.do(alice, http.MethodPost, path, ackOf(b.app, token)); got.String() != "200 {}" {
			t.Fatalf("got %s", got)
		}
	}
	activated("true")
	h.notify(2, alice)
	if p := b.receive(t); !strings.Contains(p.text, `"body":"2"`) || p.header.Get("Ttl") != "172800" || p.header.Get("Content-Encoding") != "aes128gcm" {
		t.Errorf("got %+v", p)
	}
	b.wantNothing(t)
	h.set(alice, b.pusher(`,"default_payload":{"user_id":"@a:h"}`), http.StatusOK) // the same subscription
	activated("true")
	h.notify(3, alice)
	if p := b.receive(t); !strings.Contains(p.text, `"user_id":"@a:h"`) {
		t.Errorf("got %+v", p)
	}
	b.url += "/2"
	h.set(alice, b.pusher(""), http.StatusCreated) // another one
	activated("false")
	if next := b.token(t); next == token {
		t.Error("a token came twice")
	}
	h.notify(4, alice)
	b.wantNothing(t)
	if got := h.do(alice, http.MethodPost, v3+"/pushers/ack", ackOf(b.app, token)); got.status != 400 {
		t.Errorf("a token of the replaced subscription: got %s", got)
	}
}

// The answer about a subscription that was replaced meanwhile does not remove the new one.
func TestALateAnswerDoesNotRemoveTheRenewedSubscription(t *testing.T) {
	t.Parallel()
	h := startPushHost(t, redistest.Single(t))
	old, renewed := newBrowser(t, "org.example.web"), newBrowser(t, "org.example.web")
	renewed.key, renewed.auth = old.key, old.auth
	h.set(alice, old.pusher(""), http.StatusCreated)
	h.do(alice, http.MethodPost, unstableAck, ackOf(old.app, old.token(t)))
	old.answer(http.StatusGone)
	answering := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answering <- struct{}{}
		<-answering
		w.WriteHeader(http.StatusGone)
	}))
	defer service.Close()
	old.url = service.URL
	h.set(alice, old.pusher(""), http.StatusCreated)
	<-answering
	h.set(alice, renewed.pusher(""), http.StatusCreated)
	close(answering)
	h.do(alice, http.MethodPost, unstableAck, ackOf(renewed.app, renewed.token(t)))
	h.notify(1, alice)
	renewed.receive(t)
	renewed.answer(http.StatusGone)
	h.notify(2, alice)
	eventually(t, "the pusher is removed", func() bool { return h.do(alice, http.MethodGet, v3+"/pushers", "").body == `{"pushers":[]}` })
}

func TestSubscriptionsAreRefusedAndGuarded(t *testing.T) {
	t.Parallel()
	h := startHost(t, redistest.Single(t).Client(t), pushfx.Delivery, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c = withWebPush(c)
		c.PusherPolicy.AllowHTTP, c.WebPush.AllowedPrefixes = false, nil // the prefixes of push gateways are not for web push
		return c
	}))
	b := newBrowser(t, "org.example.web")
	good := strings.Replace(b.pusher(""), b.url, "https://push.example.net/wpush/v2/x?y=1", 1)
	for name, change := range map[string][2]string{
		"M_INVALID_PARAM data.url must be an absolute https URL":                                {"https://push", "http://push"},
		"M_INVALID_PARAM data.url must not have an IP address":                                  {"push.example.net", "169.254.169.254"},
		"M_INVALID_PARAM data.url must not have a host that is local":                           {"push.example.net", "localhost"},
		"M_INVALID_PARAM data.url must be an absolute https URL, without":                       {"push.example.net", "me@push.example.net"},
		"M_MISSING_PARAM Missing parameter: data.url":                                           {`"url"`, `"URL"`},
		"M_MISSING_PARAM Missing parameter: data.auth":                                          {`"auth"`, `"AUTH"`},
		"M_INVALID_PARAM data.auth must be the subscription's auth":                             {encode64(b.auth), encode64(b.auth[1:])},
		"M_INVALID_PARAM pushkey must be the subscription's p256dh":                             {`"pushkey":"B`, `"pushkey":"A`},
		"M_INVALID_PARAM kind must be 'http', 'org.matrix.msc4174.webpush', 'webpush' or null.": {b.app, "m.email"},
	} {
		code, text, _ := strings.Cut(name, " ")
		got := h.do(alice, http.MethodPost, v3+"/pushers/set", strings.Replace(good, change[0], change[1], 1))
		if got.status != 400 || !strings.Contains(got.body, code) || !strings.Contains(got.body, text) {
			t.Errorf("%s: got %s", name, got)
		}
	}
	if got := h.do(alice, http.MethodGet, v3+"/pushers", ""); got.body != `{"pushers":[]}` {
		t.Errorf("got %s", got)
	}
	without := startHost(t, redistest.Single(t).Client(t), pushfx.Delivery)
	if got := without.do(alice, http.MethodPost, v3+"/pushers/set", good); got.status != 400 || !strings.Contains(got.body, "kind must be 'http' or null.") {
		t.Errorf("without web push: got %s", got)
	}
}

// Hosts get the key one by one: one without it leaves browsers to others, and tells nobody that web push works.
func TestAHostWithoutTheKeyLeavesBrowsersToOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var without *pushfx.Push
	startHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(allowLoopback), fx.Populate(&without))
	h, b := startPushHost(t, server), newBrowser(t, "org.example.web")
	h.set(alice, b.pusher(""), http.StatusCreated)
	token := b.token(t)
	if err := without.Pushers.Activate(t.Context(), alice, b.app, token); fault.KindOf(err) != fault.UnknownAckToken {
		t.Errorf("got %v", err)
	}
	h.do(alice, http.MethodPost, unstableAck, ackOf(b.app, token))
	for n := range 3 {
		if err := sendEvent(t.Context(), without.Notifier, message(n), alice); err != nil {
			t.Fatal(err)
		}
		if p := b.receive(t); !strings.Contains(p.text, fmt.Sprintf(`"event_id":"$%d"`, n)) {
			t.Errorf("got %s", p.text)
		}
	}
	if len(without.Capabilities()) > 0 || len(without.UnstableFeatures()) > 0 {
		t.Error("a host without a key announces web push")
	}
}

// A name may resolve to an address that push gateways may have: web push does not connect to it, and follows no redirect.
func TestWebPushConnectsToPublicAddressesAlone(t *testing.T) {
	t.Parallel()
	gateway := newTestGateway(t)
	b := newBrowser(t, "org.example.web")
	redirecting := httptest.NewServer(http.RedirectHandler(b.url, http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	for name, test := range map[string]struct {
		allowed bool
		url     string
	}{
		"a private address": {url: b.url}, "a redirect": {allowed: true, url: redirecting.URL},
	} {
		t.Run(name, func(t *testing.T) {
			var push *pushfx.Push
			var queue module.DeliveryQueue
			startHost(t, redistest.Single(t).Client(t), pushfx.Delivery, fx.Populate(&push, &queue), fx.Decorate(func(c pushfx.Config) pushfx.Config {
				if c = withWebPush(c); !test.allowed {
					c.WebPush.AllowedPrefixes = nil
				}
				return c
			}))
			p := pusherAt(gateway.url, "phone")
			web := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: encode64(b.key.PublicKey().Bytes())}, Kind: pusher.WebPush, Activated: true,
				Data: fmt.Sprintf(`{"url":%q,"auth":%q}`, test.url, encode64(b.auth))} // as if its name resolved to the address
			if err := push.Stores.Pushers.Update(t.Context(), alice, func(list *pusher.List) error {
				list.Set(p)
				list.Set(web)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := sendEvent(t.Context(), push.Notifier, message(1), alice); err != nil {
				t.Fatal(err)
			}
			gateway.wait(t, atLeast(1))
			b.wantNothing(t)
			if log, err := queue.Log(t.Context(), alice); err != nil || len(log.Pushers) != 1 {
				t.Errorf("got %+v, %v", log, err)
			}
		})
	}
}

func TestWebPushIsAnnounced(t *testing.T) {
	t.Parallel()
	_, client := embedded(t)
	push, err := pushfx.New(client, withWebPush(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err != nil {
		t.Fatal(err)
	}
	const public = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8"
	if got, err := json.Marshal(push.Capabilities()); err != nil || string(got) != `{"org.matrix.msc4174.webpush":{"enabled":true,"vapid":"`+public+`"}}` {
		t.Errorf("got %s, %v", got, err)
	}
	if got := push.UnstableFeatures(); !got["org.matrix.msc4174"] {
		t.Errorf("got %v", got)
	}
	if _, err := pushfx.New(client, withWebPush(pushfx.DefaultConfig()), pushfx.Options{}); err == nil || !strings.Contains(err.Error(), "Config.WebPush needs delivery: include pushfx.Delivery") {
		t.Errorf("got %v", err)
	}
	wrong := pushfx.DefaultConfig()
	wrong.WebPush.Key = "x"
	if _, err := pushfx.New(client, wrong, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}}); err == nil || !strings.Contains(err.Error(), "Config.WebPush.Key is not a private key") || !strings.Contains(err.Error(), "Config.WebPush.Subject is") {
		t.Errorf("got %v", err)
	}
}
