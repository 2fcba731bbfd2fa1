package receiver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// example is the example of the specification ("POST /_matrix/push/v1/notify").
const example = `{"notification":{"content":{"body":"I'm floating in a most peculiar way.","msgtype":"m.text"},
"counts":{"missed_calls":1,"unread":2},"devices":[{"app_id":"org.matrix.matrixConsole.ios","data":{},"pushkey":"V2h5IG9uIGVhcnRoIGRpZCB5b3UgZGVjb2RlIHRoaXM/",
"pushkey_ts":12345678,"tweaks":{"sound":"bing"}}],"event_id":"$3957tyerfgewrf384","prio":"high","room_alias":"#exampleroom:matrix.org","room_id":"!slw48wfj34rtnrf:example.com",
"room_name":"Mission Control","sender":"@exampleuser:matrix.org","sender_display_name":"Major Tom","type":"m.room.message"}}`

const idOnly = `{"notification":{"event_id":"$a","room_id":"!r:x","counts":{"unread":0},"prio":"low","devices":[{"app_id":"a","pushkey":"secret"}]}}`

func post(t *testing.T, r *Receiver, ctx context.Context, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body)))
	return answer
}

func TestNotificationsAreReported(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		example: `high  event $3957tyerfgewrf384  room !slw48wfj34rtnrf:example.com (Mission Control)  m.room.message from @exampleuser:matrix.org (Major Tom)` +
			`  "I'm floating in a most peculiar way."  unread 2, missed calls 1  device `,
		idOnly: `low  event $a  room !r:x  event id only  unread 0  device `,
		`{"notification":{"counts":{"unread":1},"devices":[{"app_id":"a","pushkey":"secret"}]}}`:                                                                                          `high (by default)  counts only  unread 1  device `,
		`{"notification":{"event_id":"$\u001b[2J","type":"x","sender":"@a:b","content":{"body":"\u001b` + strings.Repeat("x", 200) + `"},"devices":[{"app_id":"a","pushkey":"secret"}]}}`: `high (by default)  event $` + "\uFFFD" + `[2J  x from @a:b  "\x1b` + strings.Repeat("x", 75) + `…  device `,
	} {
		var got []Notification
		r := New(func(n Notification) { got = append(got, n) })
		answer := post(t, r, t.Context(), http.MethodPost, Path, body)
		if answer.Code != http.StatusOK || strings.TrimSpace(answer.Body.String()) != `{"rejected":[]}` {
			t.Errorf("got %d %s", answer.Code, answer.Body)
		}
		if len(got) != 1 {
			t.Fatalf("got %d notifications", len(got))
		}
		_, line, _ := strings.Cut(got[0].String(), "  ") // without the time
		if digest, found := strings.CutPrefix(line, want); !found || len(digest) != 8 || strings.Contains(line, "secret") {
			t.Errorf("got  %q\nwant %q", line, want)
		}
	}
}

func TestTroubleChangesAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		trouble      Trouble
		status       int
		retry, wants string
	}{
		{Trouble{Status: 429, RetryAfter: 5 * time.Second}, 429, "5", "answered 429"},
		{Trouble{Fail: 1}, 502, "", "answered 502"},
		{Trouble{Delay: time.Millisecond}, 200, "", ""},
		{Trouble{Reject: []string{"other", "secret"}}, 200, "", "rejected"},
	} {
		line := ""
		r := New(func(n Notification) { line = n.String() })
		r.Make(test.trouble)
		answer := post(t, r, t.Context(), http.MethodPost, Path, idOnly)
		if answer.Code != test.status || answer.Header().Get("Retry-After") != test.retry || !strings.HasSuffix(line, test.wants) {
			t.Errorf("%+v: got %d, %v, %s", test.trouble, answer.Code, answer.Header(), line)
		}
		if test.trouble.Reject != nil && strings.TrimSpace(answer.Body.String()) != `{"rejected":["secret"]}` {
			t.Errorf("got %s", answer.Body)
		}
	}
}

func TestAClientThatGivesUpIsReported(t *testing.T) {
	t.Parallel()
	for _, trouble := range []Trouble{{Hang: true}, {Delay: time.Hour}} {
		line := ""
		r := New(func(n Notification) { line = n.String() })
		r.Make(trouble)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		post(t, r, ctx, http.MethodPost, Path, idOnly)
		if !strings.HasSuffix(line, "no answer") {
			t.Errorf("got %s", line)
		}
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	t.Parallel()
	r := New(func(n Notification) { t.Errorf("reported %s", n) })
	for _, test := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodPost, "/", idOnly, 404},
		{http.MethodGet, Path, "", 405},
		{http.MethodPost, Path, "{", 400},
		{http.MethodPost, Path, "{}", 400},
		{http.MethodPost, Path, `{"notification":{"devices":[]}}`, 400},
		{http.MethodPost, Path, `{"notification":{"Devices":[{"app_id":"a","pushkey":"b"}]}}`, 400},
		{http.MethodPost, Path, `{"notification":{"devices":[{"app_id":"a"}]}}`, 400},
		{http.MethodPost, Path, `{"Notification":{"devices":[{"app_id":"a","pushkey":"b"}]}}`, 400},
		{http.MethodPost, Path, `{"notification":{"devices":[{"app_id":"a","pushkey":"b"}` + strings.Repeat(`,{"app_id":"a","pushkey":"b"}`, maxDevices) + `]}}`, 400},
		{http.MethodPost, Path, `{"notification":{"counts":{"unread":"1"},"devices":[{"app_id":"a","pushkey":"b"}]}}`, 400},
		{http.MethodPost, Path, strings.Repeat(" ", maxBodyBytes+1), 413},
	} {
		if got := post(t, r, t.Context(), test.method, test.path, test.body); got.Code != test.want {
			t.Errorf("%s %s: got %d, want %d", test.method, test.path, got.Code, test.want)
		}
	}
}

func TestARecorderReportsNewNotifications(t *testing.T) {
	t.Parallel()
	var recorder Recorder
	all, more := recorder.All()
	if len(all) != 0 {
		t.Fatalf("got %v", all)
	}
	for n := range 3 {
		go recorder.Add(Notification{EventID: fmt.Sprint(n)})
	}
	for len(all) < 3 {
		<-more
		all, more = recorder.All()
	}
}
