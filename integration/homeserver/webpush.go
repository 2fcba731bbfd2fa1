package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx"
)

// configureWebPush makes the key of -web-push. Hosts with the same name have the same key, and a restart keeps it.
func (v flagValues) configureWebPush(c *pushfx.Config) {
	if v.webPush {
		key := sha256.Sum256([]byte("pushfx demo, web push " + v.serverName)) // no secret: everyone can act as any user of the demo
		c.WebPush.Key, c.WebPush.Subject = base64.RawURLEncoding.EncodeToString(key[:]), "mailto:push@"+mailDomain
		c.WebPush.AllowedPrefixes = c.PusherPolicy.AllowedPrefixes
	}
}

const (
	pushPath      = "/_demo/push/"
	maxPushBytes  = 4096 // as other push services
	maxEndedPushs = 1000 // subscriptions, of which any user may end one
)

// pushArrival is a push on the stream. Only the page that has made its subscription can open it.
type pushArrival struct {
	ID      string `json:"id"` // of the subscription
	At      int64  `json:"at"` // milliseconds since 1970
	Status  int    `json:"status"`
	TTL     string `json:"ttl"`
	Urgency string `json:"urgency"`
	Topic   string `json:"topic,omitempty"`
	Sealed  string `json:"sealed"` // base64url
}

// push serves POST /_demo/push/ID, the host's own push service (RFC 8030), for the demo only: any id is a
// subscription until a page ends it, and nothing is kept for a browser that is away.
func (g *gateway) push(c echo.Context) error {
	r := c.Request()
	sealed, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, r.Body, maxPushBytes))
	if err != nil {
		return c.NoContent(http.StatusRequestEntityTooLarge)
	}
	p := pushArrival{
		ID: c.Param("id"), At: time.Now().UnixMilli(), Status: http.StatusCreated, TTL: r.Header.Get("TTL"), Urgency: r.Header.Get("Urgency"),
		Topic: r.Header.Get("Topic"), Sealed: base64.RawURLEncoding.EncodeToString(sealed),
	}
	g.mu.Lock()
	switch {
	case g.ended[p.ID]:
		p.Status = http.StatusGone
	case g.trouble.Status >= 300:
		p.Status = g.trouble.Status
	}
	g.keep("push", p)
	fmt.Fprintf(g.stdout, "web push to %s: %d bytes sealed, TTL %s, urgency %s, answered %d\n", p.ID, len(sealed), p.TTL, p.Urgency, p.Status)
	g.mu.Unlock()
	return c.NoContent(p.Status)
}

// endPush serves DELETE /_demo/push/ID: the browser has ended the subscription.
func (g *gateway) endPush(c echo.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ended) >= maxEndedPushs {
		clear(g.ended)
	}
	g.ended[c.Param("id")] = true
	return c.JSON(http.StatusOK, emptyObject)
}

// worker is the service worker of a real browser: it answers the first push, and shows the others. Its address has the
// name of its user.
const worker = `const api = (path, body) => fetch('/_matrix/client/' + path, {method: 'POST', body: JSON.stringify(body),
  headers: {Authorization: 'Bearer demo-' + new URL(location).searchParams.get('name')}});
addEventListener('push', event => {
  const push = event.data.json(), {app_id, ack_token} = push;
  event.waitUntil(ack_token ? api('unstable/org.matrix.msc4174/pushers/ack', {app_id, ack_token}) :
    registration.showNotification(push.room_name ?? push.room_id ?? 'pushfx', {body: push.content?.body ?? push.type ?? push.unread + ' unread', tag: push.room_id}));
});
`

func serveWorker(c echo.Context) error {
	c.Response().Header().Set(echo.HeaderContentSecurityPolicy, "default-src 'none'; connect-src 'self'")
	c.Response().Header().Set(echo.HeaderXContentTypeOptions, "nosniff")
	c.Response().Header().Set("Service-Worker-Allowed", "/")
	return c.Blob(http.StatusOK, "text/javascript", []byte(worker))
}
