package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

var throttled = &module.MailError{Outcome: module.Throttled, RetryAfter: time.Minute, Status: 451, Err: errors.New("RCPT: the server answers 451 4.3.0")}

// withholding answers mails to addresses of "held" as told, and others after 50 ms.
func (b *mailbox) withholding(answer func(context.Context) error) {
	b.set(func() {
		b.answer = func(ctx context.Context, mail module.Mail) error {
			if strings.HasPrefix(mail.To, "held") {
				return answer(ctx)
			}
			time.Sleep(50 * time.Millisecond)
			return nil
		}
	})
}

// refused is a mailer that the server refuses.
type refused struct{ *mailbox }

func (refused) SendMail(context.Context, module.Mail) error {
	return &module.MailError{Outcome: module.Blocked, Status: 554, Err: errors.New("MAIL: the server answers 554 5.7.1")}
}

// mailAges lets users get mails beside users of addresses that the server withholds mails from, and
// returns how late they came, sorted.
func (w *world) mailAges(hosts []*Delivery, held, quiet int) (ages []time.Duration) {
	var holds []mxid.UserID
	for i := range held {
		user := mxid.UserID(fmt.Sprintf("@held%d:h", i))
		w.setMail(user, fmt.Sprintf("held%d@example.org", i))
		holds = append(holds, user)
	}
	for i := range quiet {
		w.setMail(name(i), fmt.Sprintf("user%d@example.org", i))
	}
	w.notify(hosts[0], 100_000, "!held:h", holds...)
	dueAt := map[string]time.Time{}
	for e := range 120 {
		if w.notify(hosts[e%len(hosts)], e, "!r:h", name(e%quiet)); e < quiet {
			dueAt[fmt.Sprintf("user%d@example.org", e)] = time.Now().Add(w.cfg.Mail.Delay)
		}
		time.Sleep(37 * time.Second)
	}
	time.Sleep(w.cfg.Mail.Delay + time.Hour)
	seen := map[string]bool{}
	for _, m := range w.mailbox.got() {
		if due, known := dueAt[m.Mail.To]; known && !seen[m.Mail.To] {
			seen[m.Mail.To] = true
			ages = append(ages, m.at.Sub(due))
		}
	}
	if len(ages) < len(dueAt) {
		w.t.Errorf("%d of %d mails came", len(ages), len(dueAt))
	}
	slices.Sort(ages)
	return ages
}

// A server always throttles mails to some addresses. What it answers is about them.
func TestAddressesThatAreThrottledDelayNoOther(t *testing.T) {
	for label, test := range map[string]struct {
		held           int
		hosts, refused int
	}{
		"control":                             {0, 1, 0},
		"100":                                 {100, 1, 0},
		"400":                                 {400, 1, 0},
		"400, three hosts":                    {400, 3, 0},
		"a host that the server refuses":      {0, 3, 1},
		"100, a host that the server refuses": {100, 3, 1},
		"400, a host that the server refuses": {400, 3, 1},
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				b.withholding(func(context.Context) error { return throttled })
				var hosts []*Delivery
				for n := range test.hosts {
					if w.mailer = nil; n < test.refused {
						w.mailer = refused{b}
					}
					hosts = append(hosts, w.host())
				}
				ages := w.mailAges(hosts, test.held, 120)
				sum := time.Duration(0)
				for _, age := range ages {
					sum += age
				}
				if mean, last := sum/time.Duration(max(1, len(ages))), ages[len(ages)-1]; mean > 3*time.Second || last > 10*time.Second {
					t.Errorf("mails come %v late in the mean, %v at most, %d tries", mean, last, b.tries)
				} else {
					t.Logf("mails come %v late in the mean, %v at most, %d tries", mean, last, b.tries)
				}
			})
		})
	}
}
