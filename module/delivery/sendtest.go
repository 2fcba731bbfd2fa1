package delivery

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// TestResult is the result of a test notification.
type TestResult struct {
	Gateway string // see [GatewayName]
	Status  int    // of HTTP or SMTP; 0 without an answer, and for an accepted mail
	Outcome PostOutcome
	Class   string // "status" with an answer, otherwise why there is none, for example "dns"
	Took    time.Duration
	Err     error // why there is no answer, or of SMTP another one, without URL and address
}

var errNotSentTo = errors.New("delivery: the pusher gets no notifications: its kind is not http, it is disabled, or its URL is invalid")

// SendTest sends a notification of an invented message to a pusher. It stores and removes
// nothing, even if the gateway rejects the pushkey. It fails for a pusher without
// notifications; see [GatewayOf].
func SendTest(ctx context.Context, gateway module.Gateway, user mxid.UserID, p pusher.Pusher, cfg Config) (TestResult, error) {
	limits := cfg.limits()
	d, ok := content.ReadTarget(user, p, limits)
	if !ok || d.Kind != pusher.HTTP {
		return TestResult{}, errNotSentTo
	}
	n, m, err := testNotification(user, limits)
	if err != nil {
		return TestResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
	defer cancel()
	began := time.Now()
	answer, err := gateway.Post(ctx, d.URL, content.Body(n, m, d, nil, limits))
	a := content.AnswerOf(answer, classOf(err), d.Key.Pushkey)
	return TestResult{
		Gateway: d.Gateway, Status: answer.Status, Outcome: outcomeOf(a), Class: string(a.Class),
		Took: time.Since(began), Err: withoutURL(err),
	}, nil
}

// SendTestMail is [SendTest] for a pusher of kind email. The mail is about an invented message.
func SendTestMail(
	ctx context.Context, mailer module.Mailer, composer module.MailComposer, user mxid.UserID, p pusher.Pusher, cfg Config,
) (TestResult, error) {
	limits := cfg.limits()
	d, ok := content.ReadTarget(user, p, limits)
	if !ok || !d.IsMail {
		return TestResult{}, errNotSentTo
	}
	n, m, err := testNotification(user, limits)
	if err != nil {
		return TestResult{}, err
	}
	mail, err := compose(composer, user, d, cfg.Mail, &mailing{id: content.MailID(d.ID, 0, m.Event), all: []content.Mailed{{Notification: n, Meta: m}}})
	if err != nil {
		return TestResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
	defer cancel()
	began := time.Now()
	err = mailer.SendMail(ctx, mail)
	r := judgeMail(err)
	return TestResult{
		Gateway: d.Gateway, Status: r.Status, Outcome: outcomeOf(r), Class: string(r.Class), Took: time.Since(began), Err: err,
	}, nil
}

// testNotification returns a notification of an invented message.
func testNotification(user mxid.UserID, limits content.Limits) (n module.Notification, m content.Meta, err error) {
	_, server, _ := strings.Cut(string(user), ":")
	text, _ := json.Marshal(map[string]any{
		"event_id": "$pushfx_test_" + rand.Text(), "room_id": "!pushfx_test:" + server, "type": "m.room.message", "sender": user,
		"content": map[string]string{"msgtype": "m.text", "body": "Test notification"},
	})
	ev, _, err := content.ReadEvent(module.Event{JSON: string(text)}, limits, time.Now())
	if err != nil {
		return n, m, err
	}
	n = ev.Notification(content.To{User: user, Outcome: content.Outcome{High: true, Tweaks: "{}"}}, limits)
	return n, content.Meta{Event: ev.ID, Room: ev.Room, Added: time.Now().UnixMilli()}, nil
}

func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
