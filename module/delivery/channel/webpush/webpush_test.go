package webpush

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// The keys of RFC 8291, section 5.
const (
	rfcBody    = "When I grow up, I want to be a watermelon"
	rfcOwn     = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
	rfcBrowser = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
	rfcPoint   = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
	rfcAuth    = "BTBZMqHH6r4Tts7J_aSIgg"
	rfcSealed  = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf" +
		"1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)

func decode(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func private(t *testing.T, text string) *ecdh.PrivateKey {
	key, _ := ecdh.P256().NewPrivateKey(decode(t, text)) // of the example
	return key
}

func browser(data string) pusher.Pusher {
	if data != "" {
		data = "," + data
	}
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: rfcPoint}, Kind: pusher.UnstableWebPush, SetAt: 7, Activated: true,
		Data: `{"url":"https://push.example.net/send/1","auth":"` + rfcAuth + `"` + data + `}`,
	}
}

// open is what a browser does (RFC 8291, 3.1).
func open(t *testing.T, sealed []byte) string {
	t.Helper()
	key := private(t, rfcBrowser)
	salt, public, text := sealed[:16], sealed[21:21+sealed[20]], sealed[21+sealed[20]:]
	point, err := ecdh.P256().NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	shared, _ := key.ECDH(point)
	input, _ := hkdf.Key(sha256.New, shared, decode(t, rfcAuth), "WebPush: info\x00"+string(key.PublicKey().Bytes())+string(public), 32)
	secret, _ := hkdf.Key(sha256.New, input, salt, "Content-Encoding: aes128gcm\x00", 16)
	nonce, _ := hkdf.Key(sha256.New, input, salt, "Content-Encoding: nonce\x00", 12)
	block, _ := aes.NewCipher(secret)
	gcm, _ := cipher.NewGCM(block)
	body, err := gcm.Open(nil, nonce, text, nil)
	if err != nil || body[len(body)-1] != 2 {
		t.Fatalf("cannot be opened: %v", err)
	}
	return string(body[:len(body)-1])
}

func TestTheExampleOfRFC8291(t *testing.T) {
	t.Parallel()
	to, err := pusher.ReadSubscription(browser(""))
	if err != nil {
		t.Fatal(err)
	}
	sealed := sealWith(private(t, rfcOwn), decode(t, rfcSealed)[:16], to, []byte(rfcBody))
	if got := encode(sealed); got != rfcSealed {
		t.Errorf("got  %s\nwant %s", got, rfcSealed)
	}
	s := &subscriber{to: to}
	one, two := s.seal([]byte(rfcBody)), s.seal([]byte(rfcBody))
	if open(t, one) != rfcBody || open(t, two) != rfcBody || bytes.Equal(one[:16], two[:16]) || bytes.Equal(one[21:86], two[21:86]) {
		t.Error("two sealed bodies share a salt or a key, or cannot be opened")
	}
}

// isSigned checks a JWT as a push service does.
func isSigned(t *testing.T, token, public string) bool {
	t.Helper()
	text, signature, _ := strings.Cut(token[strings.IndexByte(token, '.')+1:], ".")
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), decode(t, public))
	if err != nil {
		t.Fatal(err)
	}
	raw := decode(t, signature)
	sum := sha256.Sum256([]byte(token[:strings.IndexByte(token, '.')+1] + text))
	return len(raw) == 64 && ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:]))
}

// RFC 8292, section 2.4. A signature has a random part, so the test compares what is signed.
func TestTheExampleOfRFC8292(t *testing.T) {
	t.Parallel()
	const text = "eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJhdWQiOiJodHRwczovL3B1c2guZXhhbXBsZS5uZXQiLCJleHAiOjE0NTM1MjM3NjgsInN1YiI6Im1haWx0bzpwdXNoQGV4YW1wbGUuY29tIn0"
	const signature = ".i3CYb7t4xfxCDquptFOepC9GAu_HLGkMlMuCGSK2rpiUfnK9ojFwDXb1JrErtmysazNjjvW2L9OkSSHzvoD1oA"
	const public = "BA1Hxzyi1RUM1b5wjxsn7nGxAszw2u61m164i3MrAIxHF6YK5h4SDYic-dRuU_RCPCfA5aq9ojSwk5Y2EmClBPs"
	if !isSigned(t, text+signature, public) {
		t.Error("the test does not know the signature of the example")
	}
	cfg := Config{Key: rfcOwn, Subject: "mailto:push@example.com"}
	v := newVAPID(cfg)
	token := v.sign("https://push.example.net", time.Unix(1453523768, 0))
	if !strings.HasPrefix(token, text+".") || !isSigned(t, token, cfg.PublicKey()) {
		t.Errorf("got  %s\nwant %s", token, text)
	}
}

func TestATokenOfAnOriginIsUsedForHours(t *testing.T) {
	t.Parallel()
	v, now := newVAPID(Config{Key: NewKey(), Subject: "mailto:a@example.org"}), time.Unix(1e9, 0).Truncate(tokenUse)
	first, other := v.authorization("https://a", now), v.authorization("https://b", now)
	if first == other || first != v.authorization("https://a", now.Add(tokenUse-time.Second)) {
		t.Error("an origin has no token of its own")
	}
	if v.authorization("https://a", now.Add(tokenUse)) == first || v.authorization("https://b", now.Add(-tokenUse)) == other {
		t.Error("an old token is used")
	}
	token, public, _ := strings.Cut(strings.TrimPrefix(first, "vapid t="), ", k=")
	var claims struct{ Exp int64 }
	if err := json.Unmarshal(decode(t, strings.Split(token, ".")[1]), &claims); err != nil || claims.Exp != now.Add(12*time.Hour).Unix() || !isSigned(t, token, public) {
		t.Errorf("got %+v, %v", claims, err)
	}
	for i := range 3 * maxTokens {
		v.authorization(fmt.Sprint(i), now)
	}
	if n := v.tokens.Len(); n > maxTokens {
		t.Errorf("%d tokens are kept", n)
	}
}

func TestConfigsAreRefusedWithRemedies(t *testing.T) {
	t.Parallel()
	good, key := NewKey(), newVAPID(Config{Key: rfcOwn}).key
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), nil)
	asPEM := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	ec, ecErr := x509.MarshalECPrivateKey(key)
	pkcs8, pkcs8Err := x509.MarshalPKCS8PrivateKey(key)
	wrong, wrongErr := x509.MarshalECPrivateKey(p384)
	for _, text := range []string{rfcOwn, rfcOwn + "=\n", asPEM("EC PRIVATE KEY", ec, ecErr), asPEM("PRIVATE KEY", pkcs8, pkcs8Err)} {
		if cfg := (Config{Key: text, Subject: "mailto:push@example.org"}); cfg.Validate() != nil || cfg.PublicKey() != encode(decode(t, rfcSealed)[21:86]) {
			t.Errorf("got %v, %s", cfg.Validate(), cfg.PublicKey())
		}
	}
	for _, text := range []string{"", "x", rfcPoint, rfcAuth, encode(make([]byte, 32)), asPEM("EC PRIVATE KEY", wrong, wrongErr), asPEM("X", []byte("x"), nil)} {
		err := Config{Key: text, Subject: "https://example.org"}.Validate()
		if err == nil || !strings.Contains(err.Error(), `make one with "pushctl vapid-key"`) || len(text) > 1 && strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	for subject, want := range map[string]bool{
		"mailto:a@example.org": true, "https://example.org/contact": true, "https://example.org:8448": true, "mailto:a.b+c@mail.bücher.example": true,
		"": false, "a@example.org": false, "mailto:a": false, "mailto:a@": false, "mailto:a@localhost": false, "mailto:a@x.localhost": false, "mailto: a@example.org": false,
		"mailto:@example.org": false, "mailto:A <a@example.org>": false, "https://localhost": false, "https://": false, "http://example.org": false, "mailto:a@example.": false, "https://.org": false,
	} {
		if err := (Config{Key: good, Subject: subject}).Validate(); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "mailto:admin@example.org") {
			t.Errorf("%q: got %v", subject, err)
		}
	}
}

// service is a push service.
type service struct {
	requests []module.GatewayRequest
	answer   module.GatewayAnswer
}

func (s *service) Post(_ context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	s.requests = append(s.requests, r)
	return s.answer, nil
}

var now = time.UnixMilli(1_700_000_000_000)

// sent returns what a browser gets of a push, and the request.
func sent(t *testing.T, p pusher.Pusher, n channel.Notification) (string, module.GatewayRequest) {
	t.Helper()
	s := &service{answer: module.GatewayAnswer{Status: 201}}
	c := New(Config{Key: rfcOwn, Subject: "mailto:a@example.org"}, s, func() time.Time { return now })
	target, ok := channel.Set{Channels: map[pusher.Kind]channel.Channel{p.Kind: c}}.Read("@me:h", p)
	if !ok || target.Gateway != "webpush://push.example.net" {
		t.Fatalf("got %+v", target)
	}
	if a := target.Poster.Post(t.Context(), n); a.Outcome != module.Delivered {
		t.Fatalf("got %+v", a)
	}
	return open(t, s.requests[0].Body), s.requests[0]
}

func eventOf(t *testing.T, p pusher.Pusher, contents string) channel.Notification {
	t.Helper()
	limits := content.Limits{Content: content.FullContent, MaxNotificationBytes: 8 << 10, MaxEventBytes: 64 << 10, MaxAge: time.Hour, CallAge: time.Minute}
	emoji := strings.Repeat("😀", 255)
	ev, _, err := content.ReadEvent(module.Event{RoomName: emoji, SenderName: emoji, JSON: `{"event_id":"$e","room_id":"!r:h","type":"m.room.message","sender":"@you:h","content":` + contents + `}`}, limits, now)
	if err != nil {
		t.Fatal(err)
	}
	n := ev.Notification(content.To{User: "@me:h", Outcome: content.Outcome{High: true, Tweaks: "{}"}}, limits)
	return channel.Notification{Notification: n, Meta: content.Meta{Event: ev.ID, Room: ev.Room}, Counts: &module.Counts{Unread: 3}}
}

func TestWhatALargePushLacks(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, test := range map[string]struct {
		content, data string
		has, not      []string
	}{
		"small":           {`{"body":"hi","msgtype":"m.text"}`, ``, []string{"content", "room_name", "sender_display_name", "unread", "prio"}, []string{"notification", "devices", "counts"}},
		"formatted":       {`{"body":"hi","formatted_body":"` + x(900) + `"}`, ``, []string{"content", "content.body"}, []string{"content.formatted_body"}},
		"body":            {`{"body":"` + x(900) + `","formatted_body":"x","msgtype":"m.text"}`, ``, []string{"content.msgtype", "room_name"}, []string{"content.body", "content.formatted_body"}},
		"encrypted":       {`{"algorithm":"m.megolm","ciphertext":"` + x(900) + `"}`, ``, []string{"content.algorithm"}, []string{"content.ciphertext"}},
		"other content":   {`{"body":"hi","x":"` + x(900) + `"}`, ``, []string{"room_name", "type"}, []string{"content"}},
		"a body of 60 KB": {`{"body":"` + x(60_000) + `"}`, ``, []string{"room_name", "type"}, []string{"content"}},
		"event_id_only":   {`{"body":"hi"}`, `"format":"event_id_only","default_payload":{"user_id":"@me:h"}`, []string{"event_id", "room_id", "prio", "unread", "user_id"}, []string{"type", "content"}},
		"payload":         {`{"body":"hi"}`, `"default_payload":{"aps":{"x":1e400},"event_id":"$mine"}`, []string{"aps", "content"}, nil},
		"large payload":   {`{"body":"hi"}`, `"default_payload":{"x":"` + x(900) + `"}`, []string{"event_id", "x", "unread"}, []string{"content", "type"}},
		"10 KB payload":   {`{"body":"hi"}`, `"default_payload":{"x":"` + x(10_000) + `"}`, []string{"event_id", "unread"}, []string{"x", "content", "type"}},
		"no payload":      {`{"body":"hi"}`, `"default_payload":[1]`, []string{"content"}, nil},
		"counts off":      {`{"body":"hi"}`, `"disable_badge_count":true`, []string{"content"}, nil},
	} {
		p := browser(test.data)
		got, request := sent(t, p, eventOf(t, p, test.content))
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(strings.ReplaceAll(got, "1e400", "1")), &members); err != nil || len(got) > maxBody || len(request.Body) > 4096 {
			t.Errorf("%s: %d bytes, %d sealed, %v: %.200s", name, len(got), len(request.Body), err, got)
		}
		var inner map[string]any
		_ = json.Unmarshal(members["content"], &inner) // there may be none
		has := func(path string) bool {
			if key, isInner := strings.CutPrefix(path, "content."); isInner {
				return inner[key] != nil
			}
			return members[path] != nil
		}
		if slices.ContainsFunc(test.has, func(path string) bool { return !has(path) }) || slices.ContainsFunc(test.not, has) || string(members["event_id"]) != `"$e"` {
			t.Errorf("%s: got %.300s", name, got)
		}
	}
}

func TestHeadersOfPushes(t *testing.T) {
	t.Parallel()
	inactive := browser("")
	inactive.Activated = false
	ring := content.Meta{Event: "$e", Room: "!r:h", RingsUntil: now.Add(25 * time.Second).UnixMilli()}
	for name, test := range map[string]struct {
		p                   pusher.Pusher
		n                   channel.Notification
		ttl, urgency, topic string
		body                string
	}{
		"a message": {browser(""), channel.Notification{Meta: content.Meta{Event: "$e", Room: "!r:h"}}, "172800", "normal", "", `{"event_id":"$e","room_id":"!r:h","prio":"low"}`},
		"loud": {browser(""), channel.Notification{Notification: module.Notification{Priority: module.HighPriority}, Meta: content.Meta{Event: "$e", Room: "!r:h"}}, "172800", "high", "",
			`{"event_id":"$e","room_id":"!r:h","prio":"high"}`},
		"a call": {browser(""), channel.Notification{Meta: ring}, "25", "high", "", `{"event_id":"$e","room_id":"!r:h","prio":"low"}`},
		"counts": {browser(""), channel.Notification{Counts: &module.Counts{Unread: 2, MissedCalls: 1}}, "172800", "low", channel.PusherID("@me:h", inactive.Key),
			`{"prio":"low","unread":2,"missed_calls":1}`},
		"inactive": {inactive, channel.Notification{}, "86400", "high", channel.PusherID("@me:h", inactive.Key), ``},
	} {
		got, r := sent(t, test.p, test.n)
		if h := r.Header; h["TTL"] != test.ttl || h["Urgency"] != test.urgency || h["Topic"] != test.topic || len(h["Topic"]) > 32 ||
			h["Content-Encoding"] != "aes128gcm" || !strings.HasPrefix(h["Authorization"], "vapid t=") || r.URL != "https://push.example.net/send/1" {
			t.Errorf("%s: got %v", name, r)
		}
		if test.body != "" && got != test.body {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// A token is of one user, pusher and set, and of the key of the homeserver.
func TestTokensThatActivate(t *testing.T) {
	t.Parallel()
	p := browser(`"default_payload":{"ack_token":"mine"}`)
	p.Activated = false
	got, _ := sent(t, p, channel.Notification{})
	var invitation map[string]string
	if err := json.Unmarshal([]byte(got), &invitation); err != nil || len(invitation) != 2 || invitation["app_id"] != "app" {
		t.Fatalf("got %s, %v", got, err)
	}
	token, c := invitation["ack_token"], New(Config{Key: rfcOwn}, nil, nil)
	if key, setAt, ok := c.ReadAckToken("@me:h", token); !ok || key != p.Digest() || setAt != 7 {
		t.Errorf("got %v, %v, %v", key, setAt, ok)
	}
	for _, of := range []struct {
		user  mxid.UserID
		c     *Channel
		token string
	}{
		{"@you:h", c, token}, {"@me:h", New(Config{Key: NewKey()}, nil, nil), token}, {"@me:h", New(Config{}, nil, nil), token},
		{"@me:h", c, ""}, {"@me:h", c, token[1:]}, {"@me:h", c, token + "AAAA"}, {"@me:h", c, strings.Repeat("A", 1e6)},
	} {
		if key, setAt, ok := of.c.ReadAckToken(of.user, of.token); ok {
			t.Errorf("got %v, %v", key, setAt)
		}
	}
}

func TestAnswersOfPushServices(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want     module.Outcome
		isOwn    bool
		after    time.Duration // Retry-After
		statuses []int
	}{
		{module.Delivered, false, 0, []int{201, 200, 202, 204}}, // of Mozilla, Google and Apple; ntfy; others
		{module.Gone, false, 0, []int{410, 404}},                // of Mozilla and Apple; Google
		{module.Failed, true, 0, []int{400, 401, 403}},          // a bad request or token; of Apple, a bad sub or a dead subscription
		{module.Unfit, false, 0, []int{413}},
		{module.Throttled, false, time.Minute, []int{429, 503}},
		{module.Busy, false, 0, []int{429}},
		{module.Busy, true, 0, []int{507}}, // of ntfy, without a subscriber
		{module.Failed, false, 0, []int{500, 502, 503, 301, 307}},
	} {
		for _, status := range test.statuses {
			a := answerOf(module.GatewayAnswer{Status: status, RetryAfter: test.after}, channel.ClassStatus)
			if a.Outcome != test.want || a.IsOwn != test.isOwn || a.RetryAfter != test.after || (a.GoneAfter > 0) != (status == 403) {
				t.Errorf("%d: got %+v", status, a)
			}
		}
	}
	for class, want := range map[channel.Class]module.Outcome{channel.ClassTimeout: module.Failed, channel.ClassBlocked: module.Blocked, channel.ClassUnsent: ""} {
		if a := answerOf(module.GatewayAnswer{}, class); a.Outcome != want || a.IsOwn {
			t.Errorf("%s: got %+v", class, a)
		}
	}
}

func TestPushersThatGetNothing(t *testing.T) {
	t.Parallel()
	c := New(Config{Key: rfcOwn}, nil, nil)
	for _, data := range []string{`{}`, `[]`, `{"url":"https://a","auth":"x"}`, `{"url":1,"auth":"` + rfcAuth + `"}`, `{"url":"https://[::1","auth":"` + rfcAuth + `"}`, `{"url":"a","auth":"` + rfcAuth + `"}`} {
		p := browser("")
		p.Data = data
		if c.Read(p, &channel.Target{}) {
			t.Errorf("%s is sent", data)
		}
	}
	target := &channel.Target{}
	if !New(Config{}, nil, nil).Read(browser(""), target) || target.IsSent() || target.Gateway != "webpush://push.example.net" {
		t.Errorf("without a key: got %+v", target)
	}
	with := New(Config{Key: rfcOwn}, &service{}, time.Now)
	if with.Read(browser(""), target); target.Poster.Post(t.Context(), channel.Notification{Meta: content.Meta{Event: "$", Room: strings.Repeat("x", 4000)}}).Outcome != module.Unfit {
		t.Error("ids of 4 KB are sent")
	}
}
