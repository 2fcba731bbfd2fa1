package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestSendTestPostsANotification(t *testing.T) {
	t.Parallel()
	const user mxid.UserID = "@alice:example.org"
	answer, status := `{"rejected":[]}`, 200
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := make([]byte, 1<<12)
		n, _ := r.Body.Read(text)
		body = string(text[:n])
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	public := httppush.NewGateway(dialguard.New().Client(1), nil)
	open := httppush.NewGateway(dialguard.New(netip.MustParsePrefix("127.0.0.0/8")).Client(1), nil)
	p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: "secret"}, Kind: pusher.HTTP, SetAt: 5_000_000}
	p.Data = fmt.Sprintf(`{"url":"%s/_matrix/push/v1/notify?secret"}`, server.URL)
	name, _ := GatewayOf(user, p)
	for _, test := range []struct {
		answer  string
		status  int
		gateway *httppush.Gateway
		want    TestResult
	}{
		{`{"rejected":[]}`, 200, open, TestResult{Status: 200, Outcome: PostDelivered}},
		{`{"rejected":["other"]}`, 200, open, TestResult{Status: 200, Outcome: PostDelivered}},
		{`{"rejected":["secret"]}`, 200, open, TestResult{Status: 200, Outcome: PostRejected}},
		{`<html>`, 200, open, TestResult{Status: 200, Outcome: PostDelivered}},
		{``, 204, open, TestResult{Status: 204, Outcome: PostDelivered}},
		{``, 502, open, TestResult{Status: 502, Outcome: PostFailed}},
		{``, 400, open, TestResult{Status: 400, Outcome: PostRefused}},
		{``, 200, public, TestResult{Outcome: PostBlocked, Err: dialguard.ErrRefused}},
	} {
		answer, status = test.answer, test.status
		got, err := SendTest(t.Context(), Seams{Gateway: test.gateway}, user, p, DefaultConfig())
		if err != nil || got.Gateway != name || got.Status != test.want.Status || got.Outcome != test.want.Outcome || got.Took <= 0 ||
			!errors.Is(got.Err, test.want.Err) || strings.Contains(fmt.Sprint(got), "secret") {
			t.Errorf("%d %s: got %+v, %v", test.status, test.answer, got, err)
		}
	}
	for _, part := range []string{`"room_id":"!pushfx_test:example.org"`, `"prio":"high"`, `"pushkey":"secret"`, `"pushkey_ts":5`, `"body":"Test notification"`} {
		if !strings.Contains(body, part) {
			t.Errorf("%s is not in %s", part, body)
		}
	}
	p.Kind = "email"
	if _, err := SendTest(t.Context(), Seams{Gateway: open}, user, p, DefaultConfig()); !errors.Is(err, errNotSentTo) {
		t.Errorf("of another kind: got %v", err)
	}
}
