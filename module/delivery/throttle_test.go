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

var throttled = module.MailError{Outcome: module.Throttled, RetryAfter: time.Minute, Status: 451}

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
	for e := range 60 {
		if w.notify(hosts[e%len(hosts)], e, "!r:h", name(e%quiet)); e < quiet {
			dueAt[fmt.Sprintf("user%d@example.org", e)] = time.Now().Add(w.sending.Delay)
		}
		time.Sleep(37 * time.Second)
	}
	time.Sleep(w.sending.Delay + time.Minute)
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

// A server never takes mails to some addresses. What it answers is about them.
func TestAddressesThatAreRefusedDelayNoOther(t *testing.T) {
	for label, test := range map[string]struct {
		held           int
		answer         module.MailError
		hosts, refused int
	}{
		"control":                             {0, throttled, 1, 0},
		"a host that the server refuses":      {0, throttled, 3, 1},
		"400":                                 {400, throttled, 1, 0},
		"100, a host that the server refuses": {100, throttled, 3, 1},
		"1,000, three hosts":                  {1000, throttled, 3, 0},
		"400, as spam":                        {400, module.MailError{Outcome: module.Failed, Status: 554}, 1, 0},
		"100, by policy":                      {100, module.MailError{Outcome: module.Blocked, Status: 550}, 3, 0},
		"100, without a wait":                 {100, module.MailError{Outcome: module.Throttled}, 3, 0},
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				test.answer.Err = errors.New("an answer")
				b.withholding(func(context.Context) error { return &test.answer })
				var hosts []*Delivery
				for n := range test.hosts {
					if w.mailer = nil; n < test.refused {
						w.mailer = refused{b}
					}
					hosts = append(hosts, w.host())
				}
				w.checkMailAges(w.mailAges(hosts, test.held, 60), 2*time.Second, 40*time.Second)
			})
		})
	}
}

func (w *world) checkMailAges(ages []time.Duration, mean, most time.Duration) {
	w.t.Helper()
	sum := time.Duration(0)
	for _, age := range ages {
		sum += age
	}
	if got, last := sum/time.Duration(max(1, len(ages))), ages[len(ages)-1]; got > mean || last > most {
		w.t.Errorf("mails come %v late in the mean, %v at most, %d tries", got, last, w.mailbox.tries)
	} else {
		w.t.Logf("mails come %v late in the mean, %v at most, %d tries", got, last, w.mailbox.tries)
	}
}

// A gateway never takes notifications for some pushkeys. Others of the gateway and the app are seldom notified.
func TestPushersThatAreRefusedDelayNoOther(t *testing.T) {
	for label, test := range map[string]struct {
		attackers, hosts int
		answer           module.GatewayAnswer
	}{
		"control":                      {0, 1, module.GatewayAnswer{}},
		"429 with a wait":              {400, 1, module.GatewayAnswer{Status: 429, RetryAfter: time.Minute}},
		"429 with a wait, three hosts": {400, 3, module.GatewayAnswer{Status: 429, RetryAfter: time.Minute}},
		"502":                          {400, 1, module.GatewayAnswer{Status: 502}},
	} {
		t.Run(label, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.attack(func(context.Context, sent) (module.GatewayAnswer, error) { return test.answer, nil })
				attackers := w.attackers(test.attackers, 1, atGW)
				w.innocents(60)
				var hosts []*Delivery
				for range test.hosts {
					hosts = append(hosts, w.host())
				}
				w.notify(hosts[0], 1000, "!a:h", attackers...)
				time.Sleep(7 * time.Second)
				sentAt := map[string]time.Time{}
				for e := range 60 {
					sentAt[fmt.Sprintf("$%d", e)] = time.Now()
					w.notify(hosts[e%test.hosts], e, "!r:h", name(e))
					w.notify(hosts[e%test.hosts], 1001+e, "!a:h", attackers...)
					time.Sleep(11 * time.Second)
				}
				time.Sleep(time.Minute)
				w.checkAges(sentAt, 60, 30*time.Second) // the first one
				if ages := w.ages(sentAt); ages[len(ages)*3/4] > time.Second {
					t.Errorf("a quarter came later than %v", ages[len(ages)*3/4])
				}
			})
		})
	}
}
