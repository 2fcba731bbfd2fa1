package host

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

const unstableAck = "/_matrix/client/unstable/org.matrix.msc4174/pushers/ack"

func ackOf(app, token string) string { return fmt.Sprintf(`{"app_id":%q,"ack_token":%q}`, app, token) }

// pushHost is a host with web push.
type pushHost struct {
	*hosttest.Host
	push  *pushfx.Push
	queue module.DeliveryQueue
}

func startPushHost(t *testing.T, server *redistest.Server) (h pushHost) {
	t.Helper()
	h.Host = hosttest.StartHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(hosttest.WithWebPush), fx.Populate(&h.push, &h.queue))
	return h
}

func (h pushHost) notify(n int, user mxid.UserID) {
	h.T.Helper()
	if err := hosttest.SendEvent(h.T.Context(), h.push.Notifier, hosttest.Message(n), user); err != nil {
		h.T.Fatal(err)
	}
}

func (h pushHost) set(user, body string, want int) {
	h.T.Helper()
	if got := h.Do(user, http.MethodPost, hosttest.V3+"/pushers/set", body); got.Status != want || got.Body != "{}" {
		h.T.Fatalf("got %s, want %d", got, want)
	}
}

// A pusher is inactive until its browser has returned the token that was pushed to it.
func TestABrowserIsNotifiedWhenItHasReturnedItsToken(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	h, other := startPushHost(t, server), startPushHost(t, server)
	b := hosttest.NewBrowser(t, "org.example.web")
	activated := func(want string) {
		t.Helper()
		if got := other.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", ""); !strings.Contains(got.Body, `"kind":"org.matrix.msc4174.webpush"`) || !strings.Contains(got.Body, `"activated":`+want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	h.set(hosttest.Alice, b.Pusher(""), http.StatusCreated)
	token := b.Token(t)
	activated("false")
	h.notify(1, hosttest.Alice)
	hosttest.Eventually(t, "nothing waits for an inactive pusher", func() bool {
		log, err := h.queue.Log(t.Context(), hosttest.Alice)
		return err == nil && len(log.Pushers) == 0
	})
	h.set(hosttest.Alice, b.Pusher(""), http.StatusCreated)
	first, token := token, b.Token(t)
	for name, step := range map[string]struct{ user, path, body, want string }{
		"another user's":      {hosttest.Bob, hosttest.V3 + "/pushers/ack", ackOf(b.App, token), "404 "},
		"another app's":       {hosttest.Alice, hosttest.V3 + "/pushers/ack", ackOf("other", token), "404 "},
		"of an earlier set":   {hosttest.Alice, hosttest.V3 + "/pushers/ack", ackOf(b.App, first), `400 {"errcode":"M_UNKNOWN_ACTIVATION_TOKEN"`},
		"unknown":             {hosttest.Alice, hosttest.R0 + "/pushers/ack", ackOf(b.App, "x"), `400 {"errcode":"M_UNKNOWN_ACTIVATION_TOKEN"`},
		"unknown, unstable":   {hosttest.Alice, unstableAck, ackOf(b.App, "x"), `400 {"errcode":"ORG.MATRIX.MSC4174_UNKNOWN_ACTIVATION_TOKEN"`},
		"no token":            {hosttest.Alice, unstableAck, `{"app_id":"x"}`, `400 {"errcode":"M_MISSING_PARAM"`},
		"a token of a number": {hosttest.Alice, unstableAck, `{"app_id":"x","ack_token":1}`, `400 {"errcode":"M_BAD_JSON"`},
		"no user":             {"", unstableAck, ackOf(b.App, token), `401 {"errcode":"M_MISSING_TOKEN"`},
		"another method":      {hosttest.Alice, unstableAck + "/x", "", `404 `},
	} {
		if got := other.Do(step.user, http.MethodPost, step.path, step.body); !strings.HasPrefix(got.String(), step.want) {
			t.Errorf("%s: got %s", name, got)
		}
	}
	activated("false")
	for _, path := range []string{unstableAck, hosttest.V3 + "/pushers/ack"} { // also again: the first answer may be lost
		if got := other.Do(hosttest.Alice, http.MethodPost, path, ackOf(b.App, token)); got.String() != "200 {}" {
			t.Fatalf("got %s", got)
		}
	}
	activated("true")
	h.notify(2, hosttest.Alice)
	if p := b.Receive(t); !strings.Contains(p.Text, `"body":"2"`) || p.Header.Get("Ttl") != "172800" || p.Header.Get("Content-Encoding") != "aes128gcm" {
		t.Errorf("got %+v", p)
	}
	b.WantNothing(t)
	h.set(hosttest.Alice, b.Pusher(`,"default_payload":{"user_id":"@a:h"}`), http.StatusOK) // the same subscription
	activated("true")
	h.notify(3, hosttest.Alice)
	if p := b.Receive(t); !strings.Contains(p.Text, `"user_id":"@a:h"`) {
		t.Errorf("got %+v", p)
	}
	b.URL += "/2"
	h.set(hosttest.Alice, b.Pusher(""), http.StatusCreated) // another one
	activated("false")
	if next := b.Token(t); next == token {
		t.Error("a token came twice")
	}
	h.notify(4, hosttest.Alice)
	b.WantNothing(t)
	if got := h.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/ack", ackOf(b.App, token)); got.Status != 400 {
		t.Errorf("a token of the replaced subscription: got %s", got)
	}
}

// The answer about a subscription that was replaced meanwhile does not remove the new one.
func TestALateAnswerDoesNotRemoveTheRenewedSubscription(t *testing.T) {
	t.Parallel()
	h := startPushHost(t, redistest.Single(t))
	old, renewed := hosttest.NewBrowser(t, "org.example.web"), hosttest.NewBrowser(t, "org.example.web")
	renewed.Key, renewed.Auth = old.Key, old.Auth
	h.set(hosttest.Alice, old.Pusher(""), http.StatusCreated)
	h.Do(hosttest.Alice, http.MethodPost, unstableAck, ackOf(old.App, old.Token(t)))
	old.Answer(http.StatusGone)
	answering := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answering <- struct{}{}
		<-answering
		w.WriteHeader(http.StatusGone)
	}))
	defer service.Close()
	old.URL = service.URL
	h.set(hosttest.Alice, old.Pusher(""), http.StatusCreated)
	<-answering
	h.set(hosttest.Alice, renewed.Pusher(""), http.StatusCreated)
	close(answering)
	h.Do(hosttest.Alice, http.MethodPost, unstableAck, ackOf(renewed.App, renewed.Token(t)))
	h.notify(1, hosttest.Alice)
	renewed.Receive(t)
	renewed.Answer(http.StatusGone)
	h.notify(2, hosttest.Alice)
	hosttest.Eventually(t, "the pusher is removed", func() bool {
		return h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", "").Body == `{"pushers":[]}`
	})
}

func TestSubscriptionsAreRefusedAndGuarded(t *testing.T) {
	t.Parallel()
	h := hosttest.StartHost(t, redistest.Single(t).Client(t), pushfx.Delivery, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c = hosttest.WithWebPush(c)
		c.PusherPolicy.AllowHTTP, c.WebPush.AllowedPrefixes = false, nil // the prefixes of push gateways are not for web push
		return c
	}))
	b := hosttest.NewBrowser(t, "org.example.web")
	good := strings.Replace(b.Pusher(""), b.URL, "https://push.example.net/wpush/v2/x?y=1", 1)
	for name, change := range map[string][2]string{
		"M_INVALID_PARAM data.url must be an absolute https URL":                                {"https://push", "http://push"},
		"M_INVALID_PARAM data.url must not have an IP address":                                  {"push.example.net", "169.254.169.254"},
		"M_INVALID_PARAM data.url must not have a host that is local":                           {"push.example.net", "localhost"},
		"M_INVALID_PARAM data.url must be an absolute https URL, without":                       {"push.example.net", "me@push.example.net"},
		"M_MISSING_PARAM Missing parameter: data.url":                                           {`"url"`, `"URL"`},
		"M_MISSING_PARAM Missing parameter: data.auth":                                          {`"auth"`, `"AUTH"`},
		"M_INVALID_PARAM data.auth must be the subscription's auth":                             {hosttest.Encode64(b.Auth), hosttest.Encode64(b.Auth[1:])},
		"M_INVALID_PARAM pushkey must be the subscription's p256dh":                             {`"pushkey":"B`, `"pushkey":"A`},
		"M_INVALID_PARAM kind must be 'http', 'org.matrix.msc4174.webpush', 'webpush' or null.": {b.App, "m.email"},
	} {
		code, text, _ := strings.Cut(name, " ")
		got := h.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/set", strings.Replace(good, change[0], change[1], 1))
		if got.Status != 400 || !strings.Contains(got.Body, code) || !strings.Contains(got.Body, text) {
			t.Errorf("%s: got %s", name, got)
		}
	}
	if got := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", ""); got.Body != `{"pushers":[]}` {
		t.Errorf("got %s", got)
	}
	without := hosttest.StartHost(t, redistest.Single(t).Client(t), pushfx.Delivery)
	if got := without.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/set", good); got.Status != 400 || !strings.Contains(got.Body, "kind must be 'http' or null.") {
		t.Errorf("without web push: got %s", got)
	}
}

// Hosts get the key one by one: one without it leaves browsers to others, and tells nobody that web push works.
func TestAHostWithoutTheKeyLeavesBrowsersToOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var without *pushfx.Push
	hosttest.StartHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(hosttest.AllowLoopback), fx.Populate(&without))
	h, b := startPushHost(t, server), hosttest.NewBrowser(t, "org.example.web")
	h.set(hosttest.Alice, b.Pusher(""), http.StatusCreated)
	token := b.Token(t)
	if err := without.Pushers.Activate(t.Context(), hosttest.Alice, b.App, token); fault.KindOf(err) != fault.UnknownAckToken {
		t.Errorf("got %v", err)
	}
	h.Do(hosttest.Alice, http.MethodPost, unstableAck, ackOf(b.App, token))
	for n := range 3 {
		if err := hosttest.SendEvent(t.Context(), without.Notifier, hosttest.Message(n), hosttest.Alice); err != nil {
			t.Fatal(err)
		}
		if p := b.Receive(t); !strings.Contains(p.Text, fmt.Sprintf(`"event_id":"$%d"`, n)) {
			t.Errorf("got %s", p.Text)
		}
	}
	if len(without.Capabilities()) > 0 || len(without.UnstableFeatures()) > 0 {
		t.Error("a host without a key announces web push")
	}
}

// A name may resolve to an address that push gateways may have: web push does not connect to it, and follows no redirect.
func TestWebPushConnectsToPublicAddressesAlone(t *testing.T) {
	t.Parallel()
	gateway := hosttest.NewGateway(t)
	b := hosttest.NewBrowser(t, "org.example.web")
	redirecting := httptest.NewServer(http.RedirectHandler(b.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	for name, test := range map[string]struct {
		allowed bool
		url     string
	}{
		"a private address": {url: b.URL}, "a redirect": {allowed: true, url: redirecting.URL},
	} {
		t.Run(name, func(t *testing.T) {
			var push *pushfx.Push
			var queue module.DeliveryQueue
			hosttest.StartHost(t, redistest.Single(t).Client(t), pushfx.Delivery, fx.Populate(&push, &queue), fx.Decorate(func(c pushfx.Config) pushfx.Config {
				if c = hosttest.WithWebPush(c); !test.allowed {
					c.WebPush.AllowedPrefixes = nil
				}
				return c
			}))
			p := hosttest.PusherAt(gateway.URL, "phone")
			web := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: hosttest.Encode64(b.Key.PublicKey().Bytes())}, Kind: pusher.WebPush, Activated: true,
				Data: fmt.Sprintf(`{"url":%q,"auth":%q}`, test.url, hosttest.Encode64(b.Auth))} // as if its name resolved to the address
			if err := push.Stores.Pushers.Update(t.Context(), hosttest.Alice, func(list *pusher.List) error {
				list.Set(p)
				list.Set(web)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := hosttest.SendEvent(t.Context(), push.Notifier, hosttest.Message(1), hosttest.Alice); err != nil {
				t.Fatal(err)
			}
			gateway.Wait(t, atLeast(1))
			b.WantNothing(t)
			if log, err := queue.Log(t.Context(), hosttest.Alice); err != nil || len(log.Pushers) != 1 {
				t.Errorf("got %+v, %v", log, err)
			}
		})
	}
}

func TestWebPushIsAnnounced(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	push, err := pushfx.New(client, hosttest.WithWebPush(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
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
	if _, err := pushfx.New(client, hosttest.WithWebPush(pushfx.DefaultConfig()), pushfx.Options{}); err == nil || !strings.Contains(err.Error(), "Config.WebPush needs delivery: include pushfx.Delivery") {
		t.Errorf("got %v", err)
	}
	wrong := pushfx.DefaultConfig()
	wrong.WebPush.Key = "x"
	if _, err := pushfx.New(client, wrong, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}}); err == nil || !strings.Contains(err.Error(), "Config.WebPush.Key is not a private key") || !strings.Contains(err.Error(), "Config.WebPush.Subject is") {
		t.Errorf("got %v", err)
	}
}
