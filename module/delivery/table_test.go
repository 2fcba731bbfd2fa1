package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/pusher"
)

func TestVerdicts(t *testing.T) {
	const key = "key"
	for name, test := range map[string]struct {
		answer module.GatewayAnswer
		err    error
		want   verdict
		wait   time.Duration
	}{
		"delivered":                 {module.GatewayAnswer{Status: 200}, nil, delivered, 0},
		"rejected":                  {module.GatewayAnswer{Status: 200, Rejected: []string{"other", key}}, nil, rejected, 0},
		"another is rejected":       {module.GatewayAnswer{Status: 200, Rejected: []string{"other"}}, nil, delivered, 0},
		"a login page":              {module.GatewayAnswer{Status: 200, Malformed: true}, nil, failed, 0},
		"rejected by an error":      {module.GatewayAnswer{Status: 500, Rejected: []string{key}}, nil, failed, 0},
		"no content":                {module.GatewayAnswer{Status: 204}, nil, failed, 0},
		"a redirect":                {module.GatewayAnswer{Status: 307}, nil, failed, 0},
		"sygnal: bad body":          {module.GatewayAnswer{Status: 400}, nil, refused, 0},
		"sygnal: provider failed":   {module.GatewayAnswer{Status: 502}, nil, failed, 0},
		"sygnal: internal":          {module.GatewayAnswer{Status: 500}, nil, failed, 0},
		"sygnal: cut above 512 KiB": {module.GatewayAnswer{}, io.ErrUnexpectedEOF, failed, 0},
		"its proxy: too many":       {module.GatewayAnswer{Status: 429}, nil, limited, 0},
		"ntfy: no subscriber":       {module.GatewayAnswer{Status: 507}, nil, busy, 0},
		"ntfy: too large":           {module.GatewayAnswer{Status: 413}, nil, refused, 0},
		"ntfy: too many":            {module.GatewayAnswer{Status: 429, RetryAfter: 5 * time.Second}, nil, throttled, 5 * time.Second},
		"common-proxies: bad":       {module.GatewayAnswer{Status: 422}, nil, refused, 0},
		"maintenance":               {module.GatewayAnswer{Status: 503, RetryAfter: time.Minute}, nil, throttled, time.Minute},
		"down":                      {module.GatewayAnswer{Status: 503}, nil, failed, 0},
		"at once":                   {module.GatewayAnswer{Status: 429, RetryAfter: 1}, nil, throttled, minRetryAfter},
		"next year":                 {module.GatewayAnswer{Status: 429, RetryAfter: 1 << 60}, nil, throttled, maxRetryAfter},
		"unauthorized":              {module.GatewayAnswer{Status: 401}, nil, failed, 0},
		"not found":                 {module.GatewayAnswer{Status: 404}, nil, failed, 0},
		"gone":                      {module.GatewayAnswer{Status: 410}, nil, failed, 0},
		"timeout":                   {module.GatewayAnswer{}, fmt.Errorf("post: %w", context.DeadlineExceeded), timedOut, 0},
		"timeout of a dial":         {module.GatewayAnswer{}, fmt.Errorf("post: %w", os.ErrDeadlineExceeded), timedOut, 0},
		"refused dial":              {module.GatewayAnswer{}, fmt.Errorf("post: %w", dialguard.ErrRefused), blocked, 0},
		"reset":                     {module.GatewayAnswer{}, errors.New("connection reset by peer"), failed, 0},
		"cut off by this host":      {module.GatewayAnswer{}, fmt.Errorf("post: %w", context.Canceled), unsent, 0},
		"the lease is about to end": {module.GatewayAnswer{}, errLeaseEnding, unsent, 0},
	} {
		if got, wait := judge(test.answer, test.err, key); got != test.want || wait != test.wait {
			t.Errorf("%s: got %v, %v, want %v, %v", name, got.outcome(), wait, test.want.outcome(), test.wait)
		}
	}
}

func TestBackoffIsARandomPartOfWhatDoubles(t *testing.T) {
	for attempts, most := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 8: 128 * time.Second, 10: 512 * time.Second,
		11: 10 * time.Minute, 12: 10 * time.Minute, 1 << 40: 10 * time.Minute,
	} {
		var least, longest = most, time.Duration(0)
		for range 1000 {
			d := backoff(attempts)
			least, longest = min(least, d), max(longest, d)
		}
		if longest >= most || longest < most*9/10 || least > most/10 {
			t.Errorf("after %d failures: %v to %v, want up to %v", attempts, least, longest, most)
		}
	}
}

// answers serves one answer, and returns how it is read.
func answers(t *testing.T, handler http.HandlerFunc) (module.GatewayAnswer, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	client := dialguard.New(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")).Client(1)
	defer client.CloseIdleConnections()
	return NewHTTPGateway(client).Post(t.Context(), server.URL+pusher.NotifyPath, []byte(`{"notification":{}}`))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	date := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		status int
		header map[string]string
		body   string
		want   module.GatewayAnswer
	}{
		"taken":               {200, nil, `{"rejected":[]}`, module.GatewayAnswer{Status: 200}},
		"rejected":            {200, nil, ` {"x":1,"rejected":["a","b\u00e9",7]}`, module.GatewayAnswer{Status: 200, Rejected: []string{"a", "bé"}}},
		"an empty object":     {200, nil, `{}`, module.GatewayAnswer{Status: 200}},
		"a page":              {200, nil, `<html>log in</html>`, module.GatewayAnswer{Status: 200, Malformed: true}},
		"nothing":             {200, nil, ``, module.GatewayAnswer{Status: 200, Malformed: true}},
		"a list":              {200, nil, `["a"]`, module.GatewayAnswer{Status: 200, Malformed: true}},
		"no list":             {200, nil, `{"rejected":"a"}`, module.GatewayAnswer{Status: 200, Malformed: true}},
		"null":                {200, nil, `{"rejected":null}`, module.GatewayAnswer{Status: 200, Malformed: true}},
		"too large":           {200, nil, `{"rejected":["` + strings.Repeat("x", maxAnswerBytes) + `"]}`, module.GatewayAnswer{Status: 200, Malformed: true}},
		"an error":            {502, nil, `{"rejected":["a"]}`, module.GatewayAnswer{Status: 502}},
		"seconds":             {429, map[string]string{"Retry-After": " 120 "}, ``, module.GatewayAnswer{Status: 429, RetryAfter: 2 * time.Minute}},
		"no seconds":          {429, map[string]string{"Retry-After": "0"}, ``, module.GatewayAnswer{Status: 429, RetryAfter: time.Second}},
		"too many seconds":    {429, map[string]string{"Retry-After": "9223372036854775807"}, ``, module.GatewayAnswer{Status: 429, RetryAfter: time.Hour}},
		"far too many":        {429, map[string]string{"Retry-After": "99999999999999999999"}, ``, module.GatewayAnswer{Status: 429}},
		"negative":            {429, map[string]string{"Retry-After": "-5"}, ``, module.GatewayAnswer{Status: 429}},
		"words":               {429, map[string]string{"Retry-After": "soon"}, ``, module.GatewayAnswer{Status: 429}},
		"a time of its clock": {503, map[string]string{"Date": date.Format(http.TimeFormat), "Retry-After": date.Add(90 * time.Second).Format(http.TimeFormat)}, ``, module.GatewayAnswer{Status: 503, RetryAfter: 90 * time.Second}},
		"a time that is over": {503, map[string]string{"Date": date.Format(http.TimeFormat), "Retry-After": date.Add(-time.Hour).Format(http.TimeFormat)}, ``, module.GatewayAnswer{Status: 503, RetryAfter: time.Second}},
		"a redirect":          {302, map[string]string{"Location": "http://127.0.0.1:1/"}, ``, module.GatewayAnswer{Status: 302}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := answers(t, func(w http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != `{"notification":{}}` || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("the gateway got %s, %v", body, err)
				}
				for name, value := range test.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
			})
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

// An answer that never ends is cut off, and is one all the same.
func TestAnAnswerWithoutEndIsReadToABound(t *testing.T) {
	t.Parallel()
	sent := 0
	got, err := answers(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil && sent < 1<<30 {
			n, err := w.Write(make([]byte, 32<<10))
			if sent += n; err != nil {
				return
			}
		}
	})
	if err != nil || !got.Malformed || sent > 64<<20 {
		t.Errorf("got %+v, %v after %d bytes", got, err, sent)
	}
}

func TestErrorsOfRequests(t *testing.T) {
	t.Parallel()
	gateway := NewHTTPGateway(dialguard.New().Client(1))
	for url, want := range map[string]verdict{
		"http://127.0.0.1:1/_matrix/push/v1/notify": blocked, "http://[::1]:1/": blocked, "http://169.254.169.254/": blocked,
		"ftp://example.org/": failed, "https://[::1/": failed, "": failed,
	} {
		_, err := gateway.Post(t.Context(), url, nil)
		if got := judgeError(err); err == nil || got != want {
			t.Errorf("%s: got %v, %v", url, got.outcome(), err)
		}
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{}.Validate()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		optional := field.Name == "DrainTimeout" || field.Name == "BadgeDelay" || field.Name == "Jitter"
		if !optional && !strings.Contains(err.Error(), field.Name+" is ") {
			t.Errorf("nothing is said of %s", field.Name)
		}
	}
}

// What is written is read again, and what is cut off or changed is not taken for
// something else.
func TestStoredForms(t *testing.T) {
	ev := &event{id: "$e", room: "!r:h", kind: "m.room.message", sender: "@s:h", content: `{"body":"hi"}`, lifetime: time.Minute}
	outcomes := []outcome{{true, `{"sound":"default"}`}, {false, `{}`}}
	recipients := []recipient{{"@a:h", 1}, {"@b:h", 0}, {"@c:h", 1}}
	data := encodeEntry(ev, outcomes, recipients)
	e, err := readEntry(string(data))
	if err != nil || !reflect.DeepEqual(e.event, ev) || !reflect.DeepEqual(e.outcomes, outcomes) || e.total != 3 {
		t.Fatalf("got %+v, %v", e, err)
	}
	for i, want := range recipients {
		if got := e.read(); got != want {
			t.Errorf("recipient %d: got %v, want %v", i, got, want)
		}
	}
	traced := *ev
	traced.traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	long := encodeEntry(&traced, outcomes, recipients)
	if e, err := readEntry(string(long)); err != nil || !reflect.DeepEqual(e.event, &traced) || len(long) != len(data)+56 {
		t.Errorf("with a trace: got %+v, %v, %d more bytes", e, err, len(long)-len(data))
	}
	h := &record{
		user: "@a:h", setAt: 17, rejected: true, attempts: 3, due: time.UnixMilli(5), since: time.UnixMilli(4), trouble: busy, dropped: 2,
		kept: []*notification{{event: ev, outcome: outcomes[0], added: time.UnixMilli(3), slim: true}, {event: ev, outcome: outcomes[1], added: time.UnixMilli(9)}},
	}
	kept := h.encode()
	if got, err := readRecord(kept); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("got %+v, %v", got, err)
	}
	h.kept[1].event = &traced
	longKept := h.encode()
	if got, err := readRecord(longKept); err != nil || !reflect.DeepEqual(got, h) || len(longKept) != len(kept)+57 {
		t.Errorf("with a trace: got %+v, %v, %d more bytes", got, err, len(longKept)-len(kept))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		for _, whole := range [][]byte{data, long, kept, longKept} {
			text := append([]byte(nil), whole[:rng.IntN(len(whole)+1)]...)
			for range rng.IntN(3) {
				if len(text) > 0 {
					text[rng.IntN(len(text))] = byte(rng.IntN(256))
				}
			}
			if e, err := readEntry(string(text)); err == nil {
				for e.next < e.total {
					e.read()
				}
			}
			readRecord(text)
			readFinished(text)
		}
	}
}

func TestProgressOfAnEntryIsTakenOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var recipients []recipient
		pushers := map[int]int{}
		for i := range 1 + rng.IntN(20) {
			recipients = append(recipients, recipient{name(i), 0})
			pushers[i] = rng.IntN(4)
		}
		data := encodeEntry(&event{id: "$e"}, []outcome{{}}, recipients)
		open := func() *openEntry {
			r, err := readEntry(string(data))
			if err != nil {
				t.Fatal(err)
			}
			return newOpenEntry("1-0", r)
		}
		sent := map[string]bool{}
		for e, owners := open(), 0; e.left > 0; owners++ {
			for i := range recipients { // the owner reads the pushers
				if e.isDone(i) {
					continue
				}
				var left []pusherID
				for p := range pushers[i] {
					if id := pusherID(PusherID(name(i), pusher.Key{Pushkey: key(p)})); !e.isDoneFor(i, id) {
						left = append(left, id)
					}
				}
				e.expect(i, len(left))
				for _, id := range left { // it sends some, then dies
					if rng.IntN(3) == 0 {
						if sent[string(id)] {
							t.Fatal("sent twice")
						}
						sent[string(id)] = true
						e.finishFor(i, id)
					}
				}
			}
			before := e
			e = open()
			flushes := []flush{{"@a:h", "gw", time.UnixMilli(7)}, {before: time.UnixMilli(8)}}[:owners%3]
			evicted, kept, all, err := readFinished(appendFinished(7, flushes, []*openEntry{before}))
			if err != nil || evicted != 7 || !slices.Equal(kept, flushes) {
				t.Fatal(evicted, kept, err)
			}
			if f, found := all[e.position]; found {
				e.resume(f)
			}
			if e.left != before.left {
				t.Fatalf("%d are left, %d were", e.left, before.left)
			}
		}
		want := 0
		for _, n := range pushers {
			want += n
		}
		if len(sent) != want {
			t.Fatalf("%d of %d were sent", len(sent), want)
		}
	}
}
