package content

import (
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
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
			class := ClassStatus
			if c.status == 0 {
				class = ClassTimeout
			}
			answer := module.GatewayAnswer{Status: c.status, RetryAfter: c.retryAfter}
			verdict := Judge(answer, class, "pushkey")
			if got := RetryIn(verdict, answer, c.attempts, c.failingFor, 1); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
			half := RetryIn(verdict, answer, c.attempts, c.failingFor, 0.5)
			if want := c.want / 2; verdict != Throttled && half != want {
				t.Errorf("with 0.5, got %v, want %v", half, want)
			}
		})
	}
}
