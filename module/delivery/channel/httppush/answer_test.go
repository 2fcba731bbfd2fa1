package httppush

import (
	"net/http"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
)

func TestWaitsAfterAnswers(t *testing.T) {
	for _, c := range []struct {
		name       string
		status     int
		retryAfter time.Duration
		attempts   int
		failingFor time.Duration
		want       time.Duration // at most
	}{
		{"502, the first", 502, 0, 1, 0, time.Second},
		{"502, the second", 502, 0, 2, time.Second, 2 * time.Second},
		{"502, the fourth", 502, 0, 4, 7 * time.Second, 8 * time.Second},
		{"502, the tenth", 502, 0, 10, time.Minute, 16 * time.Second},
		{"502 for two hours", 502, 0, 200, 2 * time.Hour, 10 * time.Minute},
		{"no answer", 0, 0, 3, 2 * time.Second, 4 * time.Second},
		{"404, the first", 404, 0, 1, 0, time.Second},
		{"404, the tenth", 404, 0, 10, time.Minute, 512 * time.Second},
		{"404, the twentieth", 404, 0, 20, 30 * time.Minute, 10 * time.Minute},
		{"507, the first", 507, 0, 1, 0, time.Second},
		{"507, the twentieth", 507, 0, 20, 30 * time.Minute, 10 * time.Minute},
		{"429 without Retry-After, the twentieth", 429, 0, 20, 30 * time.Minute, 10 * time.Minute},
		{"503 without Retry-After, the tenth", 503, 0, 10, time.Minute, 16 * time.Second},
		{"503 with Retry-After", 503, 90 * time.Second, 5, 0, 90 * time.Second},
		{"429 with Retry-After", 429, 90 * time.Second, 5, 0, 90 * time.Second},
		{"429 with a long Retry-After", 429, 9 * time.Hour, 1, 0, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			class := channel.ClassStatus
			if c.status == 0 {
				class = channel.ClassTimeout
			}
			answer := module.GatewayAnswer{Status: c.status, RetryAfter: c.retryAfter}
			a := AnswerOf(answer, class, "pushkey")
			if got := a.RetryIn(c.attempts, c.failingFor, 1); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
			half := a.RetryIn(c.attempts, c.failingFor, 0.5)
			if want := c.want / 2; a.Outcome != module.Throttled && half != want {
				t.Errorf("with 0.5, got %v, want %v", half, want)
			}
		})
	}
}

// A server says "later", and how much later at least: there, waits are longer, and grow.
func TestWhoIsToldToWaitIsAskedLater(t *testing.T) {
	t.Parallel()
	for _, outcome := range []module.Outcome{module.Busy, module.Throttled} {
		a := channel.Answer{Outcome: outcome, Class: channel.ClassStatus, Status: 451, RetryAfter: time.Minute}
		for attempts, want := range map[int]time.Duration{1: time.Minute, 4: 160 * time.Second, 20: 10 * time.Minute} {
			if got := a.RetryIn(attempts, 0, 20); got != want {
				t.Errorf("%s, attempt %d: got %v, want %v", outcome, attempts, got, want)
			}
		}
	}
}

// Each row is an answer that a gateway gives: the Push Gateway API, sygnal, ntfy, and proxies before them.
func TestAnswersOfGateways(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, c := range map[string]struct {
		answer module.GatewayAnswer
		class  channel.Class
		want   module.Outcome
		isOwn  bool
	}{
		"taken":                              {module.GatewayAnswer{Status: 200}, channel.ClassStatus, module.Delivered, false},
		"taken, another pushkey is rejected": {module.GatewayAnswer{Status: 200, Rejected: []string{"other"}}, channel.ClassStatus, module.Delivered, false},
		"the pushkey is rejected":            {module.GatewayAnswer{Status: 200, Rejected: []string{"other", "pushkey"}}, channel.ClassStatus, module.Gone, false},
		"201":                                {module.GatewayAnswer{Status: 201}, channel.ClassStatus, module.Delivered, false},
		"202 rejects the pushkey":            {module.GatewayAnswer{Status: 202, Rejected: []string{"pushkey"}}, channel.ClassStatus, module.Gone, false},
		"204":                                {module.GatewayAnswer{Status: 204}, channel.ClassStatus, module.Delivered, false},
		"301, the path has moved":            {module.GatewayAnswer{Status: 301}, channel.ClassStatus, module.Failed, false},
		"400, sygnal: the body is bad":       {module.GatewayAnswer{Status: 400}, channel.ClassStatus, module.Unfit, true},
		"401, a proxy wants a password":      {module.GatewayAnswer{Status: 401}, channel.ClassStatus, module.Failed, true},
		"403, a firewall":                    {module.GatewayAnswer{Status: 403, Rejected: []string{"pushkey"}}, channel.ClassStatus, module.Failed, true},
		"404, the path is wrong":             {module.GatewayAnswer{Status: 404}, channel.ClassStatus, module.Failed, true},
		"405":                                {module.GatewayAnswer{Status: 405}, channel.ClassStatus, module.Failed, true},
		"408":                                {module.GatewayAnswer{Status: 408}, channel.ClassStatus, module.Failed, true},
		"410, no rejection":                  {module.GatewayAnswer{Status: 410}, channel.ClassStatus, module.Failed, true},
		"413, too large":                     {module.GatewayAnswer{Status: 413}, channel.ClassStatus, module.Unfit, true},
		"422":                                {module.GatewayAnswer{Status: 422}, channel.ClassStatus, module.Unfit, true},
		"429, ntfy: too many requests":       {module.GatewayAnswer{Status: 429}, channel.ClassStatus, module.Busy, false},
		"429 with Retry-After":               {module.GatewayAnswer{Status: 429, RetryAfter: second}, channel.ClassStatus, module.Throttled, false},
		"500":                                {module.GatewayAnswer{Status: 500, RetryAfter: second}, channel.ClassStatus, module.Failed, false},
		"502, sygnal: Apple or Google fails": {module.GatewayAnswer{Status: 502}, channel.ClassStatus, module.Failed, false},
		"503":                                {module.GatewayAnswer{Status: 503}, channel.ClassStatus, module.Failed, false},
		"503 with Retry-After":               {module.GatewayAnswer{Status: 503, RetryAfter: second}, channel.ClassStatus, module.Throttled, false},
		"504":                                {module.GatewayAnswer{Status: 504}, channel.ClassStatus, module.Failed, false},
		"507, ntfy: no app listens":          {module.GatewayAnswer{Status: 507}, channel.ClassStatus, module.Busy, true},
		"no answer in time":                  {module.GatewayAnswer{}, channel.ClassTimeout, module.Failed, false},
		"no such name":                       {module.GatewayAnswer{}, channel.ClassDNS, module.Failed, false},
		"a wrong certificate":                {module.GatewayAnswer{}, channel.ClassTLS, module.Failed, false},
		"no connection":                      {module.GatewayAnswer{}, channel.ClassRefused, module.Failed, false},
		"an address that is not public":      {module.GatewayAnswer{}, channel.ClassBlocked, module.Blocked, false},
		"cancelled by this host":             {module.GatewayAnswer{}, channel.ClassUnsent, "", false},
	} {
		want := channel.Answer{Outcome: c.want, Class: c.class, Status: c.answer.Status, RetryAfter: c.answer.RetryAfter, IsOwn: c.isOwn}
		if got := AnswerOf(c.answer, c.class, "pushkey"); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// busy is a gateway that asks for a wait.
type busy http.Header

func (b busy) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header(b), Body: http.NoBody, Request: r}, nil
}

func TestBothFormsOfRetryAfterAreRead(t *testing.T) {
	t.Parallel()
	at := func(wait time.Duration) string { return time.Now().Add(wait).UTC().Format(http.TimeFormat) }
	const second, century = time.Second, 100 * 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		date, after string
		want        time.Duration // or up to a second less
	}{
		"seconds": {"", "90", 90 * second}, "at once": {"", "0", second}, "none": {"", "", 0}, "before": {"", "-90", 0}, "a part": {"", "1.5", 0}, "soon": {"", "soon", 0},
		"a day": {"", "86400", time.Hour}, "an age": {"", "99999999999999999999999", time.Hour},
		"a time by a clock that is an hour slow": {at(-time.Hour), at(90*second - time.Hour), 90 * second}, "a time that was": {at(-time.Hour), at(-2 * time.Hour), second},
		"a time by this clock": {"", at(90 * second), 90 * second}, "a century": {at(0), at(century), century},
	} {
		header := http.Header{}
		header.Set("Date", c.date)
		header.Set("Retry-After", c.after)
		answer, err := NewGateway(&http.Client{Transport: busy(header)}, nil).Post(t.Context(), module.GatewayRequest{URL: "https://gw"})
		if least := max(c.want-second, min(c.want, second)); err != nil || answer.Status != 429 || answer.RetryAfter > c.want || answer.RetryAfter < least {
			t.Errorf("%s: got %v, %v, want %v", name, answer.RetryAfter, err, c.want)
		}
	}
}
