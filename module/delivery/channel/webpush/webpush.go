// Package webpush sends notifications to browsers, without a push gateway (MSC4174, RFC 8030); its API
// may change at any time, except [Config] and [NewKey].
package webpush

import (
	"context"
	"encoding/binary"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/internal/signed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Channel sends to pushers of the kinds of web push. Without a valid Config it only names their gateways.
type Channel struct {
	gateway module.Gateway
	now     func() time.Time
	vapid   *vapid // nil without a key
}

var _ channel.Channel = (*Channel)(nil)

// New returns a channel. Now is the clock of the queue.
func New(cfg Config, gateway module.Gateway, now func() time.Time) *Channel {
	return &Channel{gateway, now, newVAPID(cfg)}
}

// Kind implements [channel.Channel]. The channel is also for [pusher.UnstableWebPush].
func (c *Channel) Kind() pusher.Kind { return pusher.WebPush }

// Sends implements [channel.Channel].
func (c *Channel) Sends() bool { return c.vapid != nil }

// Delay implements [channel.Channel].
func (c *Channel) Delay() time.Duration { return 0 }

// Read implements [channel.Channel]. All subscriptions at a push service have the same gateway.
func (c *Channel) Read(p pusher.Pusher, t *channel.Target) (ok bool) {
	to, err := pusher.ReadSubscription(p)
	u, invalid := url.Parse(to.URL)
	if err != nil || invalid != nil || u.Host == "" {
		return false
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":443")
	s := &subscriber{c: c, Target: t, to: to, origin: u.Scheme + "://" + host, payload: content.MemberOf(p.Data, "default_payload")}
	w := strictjson.Walk(p.Data)
	w.Next()
	for name := range w.Object() {
		switch value := w.Skip(); {
		case name == "format":
			t.IsIDOnly = content.ReadText(value) == "event_id_only"
		case channel.IsCountsOff(name):
			t.NoCounts = t.NoCounts || value == "true"
		}
	}
	if c.Sends() {
		t.Poster = s
	}
	t.Gateway, ok = channel.GatewayName(string(pusher.WebPush) + "://" + host)
	return ok
}

// subscriber sends to a push subscription.
type subscriber struct {
	c *Channel
	*channel.Target
	to      pusher.Subscription
	origin  string // of the push service
	payload string // default_payload
}

// How long push services keep a push for a browser that is off.
const (
	maxTTL   = 48 * time.Hour
	tokenTTL = 24 * time.Hour // as long as a token is valid
)

// Post implements [channel.Poster]. An inactive pusher gets the token that activates it, whatever waits.
func (s *subscriber) Post(ctx context.Context, n channel.Notification) channel.Answer {
	body, ttl, urgency, now := s.body(n), maxTTL, "normal", s.c.now()
	header := map[string]string{
		"Content-Type": "application/octet-stream", "Content-Encoding": "aes128gcm", "Authorization": s.c.vapid.authorization(s.origin, now),
	}
	switch {
	case s.Inactive:
		body, ttl, urgency = s.invitation(), tokenTTL, "high"
	case n.Meta.Rings(now):
		ttl, urgency = time.UnixMilli(n.Meta.RingsUntil).Sub(now), "high"
	case n.Meta.Event == "":
		urgency = "low"
	case n.Priority == module.HighPriority:
		urgency = "high"
	}
	if n.Meta.Event == "" {
		header["Topic"] = s.ID // the last one replaces those that the push service still has
	}
	header["TTL"], header["Urgency"] = strconv.Itoa(int(ttl/time.Second)), urgency
	sealed := s.seal(body)
	if len(sealed) > maxSealed { // of ids that no server has
		return channel.Answer{Outcome: module.Unfit, Class: channel.ClassStatus}
	}
	answer, err := s.c.gateway.Post(ctx, module.GatewayRequest{URL: s.to.URL, Header: header, Body: sealed, AnyPath: true})
	a := answerOf(answer, channel.ClassOf(err))
	a.Err = channel.WithoutURL(err)
	return a
}

// answerOf returns what an answer of a push service says (RFC 8030, 5 and 7.3). Apple answers 403 for a
// wrong Subject and for a dead subscription alike.
func answerOf(answer module.GatewayAnswer, class channel.Class) channel.Answer {
	status := answer.Status
	a := channel.Answer{Outcome: module.Failed, Class: class, Status: status, RetryAfter: answer.RetryAfter}
	switch {
	case class == channel.ClassBlocked:
		a.Outcome = module.Blocked
	case class == channel.ClassUnsent:
		a.Outcome = ""
	case class != channel.ClassStatus:
	case status >= 200 && status < 300:
		a.Outcome = module.Delivered
	case status == 404, status == 410:
		a.Outcome = module.Gone
	case status == 403:
		a.GoneAfter = time.Hour
	case status == 413:
		a.Outcome = module.Unfit
	case (status == 429 || status == 503) && answer.RetryAfter > 0:
		a.Outcome = module.Throttled
	case status == 429, status == 507:
		a.Outcome = module.Busy
	}
	a.IsOwn = a.Outcome == module.Failed && status >= 400 && status < 500 || status == 507
	return a
}

// ackPurpose is the purpose of the tokens of a user; see [signed.Token].
func ackPurpose(user mxid.UserID) string { return "activate a pusher of " + string(user) }

// invitation returns the first push. Its token names the pusher and its set.
func (s *subscriber) invitation() []byte {
	text := binary.BigEndian.AppendUint64(nil, uint64(s.SetAt))
	token := signed.Token(s.c.vapid.ackKey, ackPurpose(s.User), append(text, s.Key.Digest()...))
	return append(content.AppendString(content.AppendString([]byte{'{'}, "app_id", s.Key.AppID), "ack_token", token), '}')
}

// ReadAckToken returns the pusher and the time of the set that a token of a user is for.
func (c *Channel) ReadAckToken(user mxid.UserID, token string) (key pusher.Digest, setAt int64, ok bool) {
	if !c.Sends() {
		return "", 0, false
	}
	text, ok := signed.Read(c.vapid.ackKey, ackPurpose(user), token)
	if !ok || len(text) < 8 {
		return "", 0, false
	}
	return pusher.Digest(text[8:]), int64(binary.BigEndian.Uint64(text)), true
}
