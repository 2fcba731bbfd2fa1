package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
	"github.com/pushfx/pushfx/integration/homeserver/inbox"
)

const (
	maxArrivals     = 100              // the last arrivals, for new pages
	maxArrivalBytes = 1 << 20          // bytes of these arrivals
	aliveEvery      = 15 * time.Second // interval of comments on a silent stream, so that proxies keep it open
)

// gateway is the host's own push gateway. It prints each notification and streams it to the
// demo's page. It is safe for concurrent use.
type gateway struct {
	receiver *receiver.Receiver
	stdout   io.Writer
	stopped  <-chan struct{} // closed when the host stops
	inbox    *inbox.Inbox    // nil without -mail inbox
	webPush  bool            // it is also a push service
	about    map[string]any  // the members of the stream's event "gateway" beside the status

	mu       sync.Mutex
	trouble  receiver.Trouble
	ended    map[string]bool // push subscriptions
	arrivals []string        // the last arrivals as events of the stream, the oldest first
	size     int             // bytes of arrivals
	count    int             // number of all arrivals so far
	changed  chan struct{}
}

func newGateway(cfg config, waker *waker, stdout io.Writer) *gateway {
	g := &gateway{
		stdout: stdout, stopped: waker.stopped, inbox: cfg.inbox, about: cfg.aboutMail(), trouble: cfg.trouble, changed: make(chan struct{}),
		ended: map[string]bool{}, webPush: cfg.webPush,
	}
	g.receiver = receiver.New(g.arrived)
	g.receiver.Make(cfg.trouble)
	return g
}

// arrival is a notification on the stream. It has no pushkey, because the stream goes to
// every user.
type arrival struct {
	At           int64                      `json:"at"`     // milliseconds since 1970
	Status       int                        `json:"status"` // of the answer, 0 for none
	Devices      []arrivalDevice            `json:"devices"`
	Notification map[string]json.RawMessage `json:"notification"` // as the homeserver sent it, without the devices
}

type arrivalDevice struct {
	ID     string          `json:"id"` // see [receiver.Device.Digest]
	Tweaks json.RawMessage `json:"tweaks,omitempty"`
}

func newArrival(n receiver.Notification) arrival {
	a := arrival{At: n.Ended.UnixMilli(), Status: n.Status, Notification: n.Others}
	for _, device := range n.Devices {
		a.Devices = append(a.Devices, arrivalDevice{device.Digest(), device.Tweaks})
	}
	return a
}

func (g *gateway) arrived(n receiver.Notification) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fmt.Fprintln(g.stdout, n)
	g.keep("arrival", newArrival(n))
}

// keep puts an arrival on the stream. The caller holds the lock.
func (g *gateway) keep(name string, arrival any) {
	text := event(name, arrival)
	g.arrivals = append(g.arrivals, text)
	g.size += len(text)
	for len(g.arrivals) > maxArrivals || g.size > maxArrivalBytes {
		g.size -= len(g.arrivals[0])
		g.arrivals = g.arrivals[1:]
	}
	g.count++
	g.announce()
}

// announce wakes all streams. The caller holds the lock.
func (g *gateway) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// since returns the arrivals after the first n, the number of all arrivals, and the status of the next answer. The
// gateway closes changed at the next arrival or new status.
func (g *gateway) since(n int) (news []string, count, status int, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	missed := min(g.count-n, len(g.arrivals))
	status = g.trouble.Status
	if status == 0 {
		status = http.StatusOK
	}
	return append(news, g.arrivals[len(g.arrivals)-missed:]...), g.count, status, g.changed
}

// setStatus serves PUT /_demo/gateway, which sets the status of all later answers. Homeservers retry after any status
// but 200.
func (g *gateway) setStatus(c echo.Context) error {
	var request struct {
		Status int `json:"status"`
	}
	if _, err := readObject(c, &request); err != nil {
		return err
	}
	if request.Status < 200 || request.Status > 599 {
		return badRequest("M_INVALID_PARAM", "Field 'status' must be 200 to 599.")
	}
	g.answer(request.Status)
	return c.JSON(http.StatusOK, emptyObject)
}

func (g *gateway) answer(status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble.Status = status
	g.receiver.Make(g.trouble)
	g.announce()
}

// stream serves GET /_demo/notifications, as server-sent events: "gateway" with the gateway's
// URL and status, "arrival" with a notification, "push" with a web push, and "mail" with a mail. A new stream begins
// with the last of them.
func (g *gateway) stream(c echo.Context, url string) error {
	w := c.Response()
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set(echo.HeaderCacheControl, "no-store")
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for seen, told, read := 0, 0, 0; ; {
		news, count, status, changed := g.since(seen)
		mails, mailCount, mailed := g.inbox.Since(read)
		events := ": alive\n\n"
		if status != told {
			about := maps.Clone(g.about)
			about["url"], about["status"] = url, status
			events += event("gateway", about)
		}
		events += strings.Join(news, "")
		for _, m := range mails {
			events += event("mail", newMailArrival(m))
		}
		seen, told, read = count, status, mailCount
		if err := send(w, events); err != nil {
			return nil //nolint:nilerr // the page was closed
		}
		select {
		case <-changed:
		case <-mailed:
		case <-alive.C:
		case <-g.stopped:
			return nil
		case <-c.Request().Context().Done():
			return nil
		}
	}
}

func event(name string, data any) string {
	text, _ := json.Marshal(data) // strings, numbers and JSON
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, text)
}

// send writes to a stream and flushes it. It extends the write deadline.
func send(w *echo.Response, text string) error {
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	return control.Flush()
}
