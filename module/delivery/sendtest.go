package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// TestResult is how a push gateway answers a test.
type TestResult struct {
	Gateway string // see [GatewayOf]
	Status  int    // of HTTP; 0 without an answer
	Outcome PostOutcome
	Took    time.Duration
	Err     error // why there is no answer; it has nothing of the URL's path
}

// errNotSentTo is for a pusher that gets no notifications.
var errNotSentTo = errors.New("delivery: the pusher is not sent to: it is of another kind than http, disabled, or has no URL that can be read")

// SendTest sends a notification of an event that there is not to one pusher of a
// user, as a host would of a new message, and waits for the answer. Whatever that
// is, nothing is stored or removed. It fails if hosts would not send to the pusher.
func SendTest(ctx context.Context, gateway module.Gateway, user mxid.UserID, p pusher.Pusher, cfg Config) (TestResult, error) {
	d, ok := readDevice(user, p)
	if !ok {
		return TestResult{}, errNotSentTo
	}
	_, server, _ := strings.Cut(string(user), ":")
	m := message{
		user: user, device: &d, outcome: outcome{high: true, tweaks: "{}"},
		event: &event{
			id: "$pushfx_test_" + rand.Text(), room: "!pushfx_test:" + server, kind: "m.room.message", sender: string(user),
			content: `{"msgtype":"m.text","body":"Test notification"}`,
		},
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
	defer cancel()
	began := time.Now()
	answer, err := gateway.Post(ctx, d.url, m.body(&cfg))
	v, _ := judge(answer, err, d.key.Pushkey)
	return TestResult{Gateway: d.gateway, Status: answer.Status, Outcome: v.outcome(), Took: time.Since(began), Err: withoutURL(err)}, nil
}

// withoutURL returns what an error of an [http.Client] says beside the URL.
func withoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
