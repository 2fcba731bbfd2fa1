package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// mailbox is the mailer and the composer, and the account data of all users. The text of a mail has its digest.
type mailbox struct {
	mu           sync.Mutex
	answer       func(ctx context.Context, mail module.Mail) error // nil accepts all mails
	composeError error
	confirmed    func(address string) (bool, error) // nil confirms all addresses
	mails        []mailed                           // that were accepted
	tries        int
	underWay     int
	mostUnderWay int
}

type mailed struct {
	module.Mail
	module.MailDigest
	at time.Time
}

func (b *mailbox) ComposeMail(digest module.MailDigest) (module.Mail, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, _ := json.Marshal(digest)
	return module.Mail{To: "another@example.org", ID: "another", Token: "token", Subject: "unread", Text: string(text)}, b.composeError
}

func (b *mailbox) SendMail(ctx context.Context, mail module.Mail) (err error) {
	b.mu.Lock()
	answer := b.answer
	b.tries++
	b.underWay++
	b.mostUnderWay = max(b.mostUnderWay, b.underWay)
	b.mu.Unlock()
	if answer != nil {
		err = answer(ctx, mail)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay--
	if err == nil {
		m := mailed{Mail: mail, at: time.Now()}
		_ = json.Unmarshal([]byte(mail.Text), &m.MailDigest)
		b.mails = append(b.mails, m)
	}
	return err
}

func (b *mailbox) confirm(_ context.Context, _ mxid.UserID, address string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.confirmed == nil {
		return true, nil
	}
	return b.confirmed(address)
}

func (b *mailbox) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *mailbox) got() []mailed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.mails)
}

// events returns the events of a mail, room by room.
func (m mailed) events() (all []string) {
	for _, room := range m.Rooms {
		for _, e := range room.Events {
			all = append(all, e.ID)
		}
	}
	return all
}

func withMail(t *testing.T, test func(w *world, r *reader, b *mailbox)) {
	t.Helper()
	withReader(t, func(w *world, r *reader) {
		w.mailbox = &mailbox{}
		test(w, r, w.mailbox)
	})
}

const address = "a@Example.ORG"

const mailsADay = 12

func (w *world) setMail(user mxid.UserID, address string) {
	key := pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}
	w.setPusher(user, pusher.Pusher{Key: key, Kind: pusher.Email, Lang: "de", Device: "PHONE", Data: `{"format":"event_id_only"}`})
}

// wantMails checks the times of mails since the world began, within a few seconds.
func (w *world) wantMails(after ...time.Duration) {
	w.t.Helper()
	var got []time.Duration
	for _, m := range w.mailbox.got() {
		got = append(got, m.at.Sub(w.began).Truncate(10*time.Second))
	}
	if !slices.Equal(got, after) {
		w.t.Errorf("mails came after %v, want %v", got, after)
	}
}

func TestAMailHasWhatWaits(t *testing.T) {
	withMail(t, func(w *world, r *reader, b *mailbox) {
		w.setMail(name1, address)
		w.set(name1, "key", "gw")
		d := w.host()
		for e := range 3 {
			w.notify(d, e, "!r:h", name1)
			w.badge(d, name1)
		}
		w.notify(d, 3, "!other:h", name1)
		w.event(d, `{"event_id":"$call","room_id":"!call:h","type":"m.call.invite","sender":"@sender:h","content":{"lifetime":30000}}`, name1)
		w.wait(10*time.Second, func() bool { return fmt.Sprint(w.got("key")) == "[$0 $1 $2 $3 $call]" })
		r.do(func() { r.read["$1"] = true })
		time.Sleep(w.sending.Delay - 11*time.Second)
		w.wantMails()
		time.Sleep(13 * time.Second)
		w.wantMails(w.sending.Delay)
		m := b.got()[0]
		if got, want := fmt.Sprint(m.events()), "[$call $3 $0 $2]"; got != want || m.Events != 4 {
			t.Errorf("the mail has %s of %d, want %s", got, m.Events, want)
		}
		if m.User != name1 || m.Mail.To != address || m.Mail.ID == "another" || m.Mail.ID != m.MailDigest.ID || m.Mail.Token != "token" || m.Lang != "de" ||
			m.Rooms[1].Events[0].Content != `{"body":"hi","msgtype":"m.text"}` {
			t.Errorf("the mail is %+v", m)
		}
		if w.queue.Waiting() != 0 || w.drops(DropRead) != 1 || len(w.late) > 0 {
			t.Errorf("%d are left, dropped %v, late %v", w.queue.Waiting(), w.dropped, w.late)
		}
		time.Sleep(w.sending.Repeat) // the queue's numbers begin anew
		w.notify(d, 10, "!r:h", name1)
		time.Sleep(w.sending.Delay + 2*time.Second)
		synctest.Wait()
		if mails := b.got(); len(mails) != 2 || mails[1].Mail.ID == m.Mail.ID {
			t.Errorf("%d mails, with the ids %s, %s", len(mails), m.Mail.ID, mails[len(mails)-1].Mail.ID)
		}
	})
}

// A mail waits until the oldest notification that is unread has waited for Delay.
func TestAMailWaitsForWhatIsUnread(t *testing.T) {
	withMail(t, func(w *world, r *reader, b *mailbox) {
		w.setMail(name1, address)
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(8 * time.Minute)
		r.do(func() { r.read["$1"] = true })
		w.notify(d, 2, "!r:h", name1)
		// The pusher of a phone that is called, or set again, must not hasten it.
		w.event(d, `{"event_id":"$call","room_id":"!r:h","type":"m.call.invite","sender":"@sender:h","content":{}}`, name1)
		w.setMail(name1, address)
		w.notify(d, 3, "!r:h", name1)
		time.Sleep(11 * time.Minute)
		w.wantMails(18 * time.Minute)
		if got := fmt.Sprint(b.got()[0].events()); got != "[$2 $call $3]" {
			t.Errorf("the mail has %s", got)
		}
	})
}

// Events come all the time. Only a user who reads something gets a mail before Repeat.
func TestOneMailAnAbsence(t *testing.T) {
	const minute, hour = time.Minute, time.Hour
	for label, test := range map[string]struct {
		noUnread bool
		readAt   time.Duration // when all is read, 0 for never
		want     []time.Duration
	}{
		"nothing is read":  {false, 0, []time.Duration{10 * minute, 3*hour + 10*minute, 6*hour + 10*minute}},
		"it is not known":  {true, 0, []time.Duration{10 * minute, 3*hour + 10*minute, 6*hour + 10*minute}},
		"read at one hour": {false, hour, []time.Duration{10 * minute, hour + 10*minute, 4*hour + 10*minute}},
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, r *reader, b *mailbox) {
				if w.sending.Repeat = 3 * hour; test.noUnread {
					w.unread = nil
				}
				w.setMail(name1, address)
				w.set(name1, "key", "gw")
				d := w.host()
				for e := range 7 * 12 {
					if now := time.Since(w.began); test.readAt > 0 && now == test.readAt {
						r.do(func() {
							for past := range e {
								r.read[fmt.Sprint("$", past)] = true
							}
						})
					}
					w.notify(d, e, "!r:h", name1)
					synctest.Wait()
					if s := w.all(); len(s) != e+1 || time.Since(s[e].at) > 0 {
						t.Fatalf("event %d did not reach the phone at once", e)
					}
					time.Sleep(5 * minute)
				}
				w.wantMails(test.want...)
				for i, m := range b.got() {
					if shown := len(m.events()); shown > w.sending.MaxEvents || m.Rooms[0].Hidden != m.Events-shown || i > 0 && m.Mail.ID == b.got()[i-1].Mail.ID {
						t.Errorf("mail %d has %d events, shows %d", i, m.Events, shown)
					}
				}
			})
		})
	}
}

// A redacted event counts as read, but a sender who redacts causes few mails.
func TestRedactionsCauseFewMails(t *testing.T) {
	withMail(t, func(w *world, r *reader, b *mailbox) {
		w.setMail(name1, address)
		d := w.host()
		for e := range 48 * 6 {
			w.notify(d, e, "!r:h", name1)
			time.Sleep(w.sending.Delay + time.Second)
			r.do(func() { r.read[fmt.Sprint("$", e)] = true })
		}
		if n := len(b.got()); n < 2*mailsADay || n > 2*mailsADay+2 {
			t.Errorf("%d mails in two days", n)
		}
	})
}

// A user who stops mails and wants them again need not wait for Repeat, but setting a pusher again and again brings no
// more mails than reading does.
func TestAPusherThatWasSetAgainGetsAMail(t *testing.T) {
	withMail(t, func(w *world, r *reader, b *mailbox) {
		d := w.host()
		for e := range 2 * mailsADay {
			w.setMail(name1, address)
			w.notify(d, e, "!r:h", name1)
			time.Sleep(11 * time.Minute)
			synctest.Wait()
			if got, want := len(b.got()), min(e+1, mailsADay); got != want {
				t.Fatalf("%d mails after %d sets, want %d", got, e+1, want)
			}
		}
	})
}

func TestAttentionDelaysAMailOnce(t *testing.T) {
	withMail(t, func(w *world, r *reader, b *mailbox) {
		w.setMail(name1, address)
		d := w.host()
		r.do(func() { r.delay = time.Hour })
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(time.Hour)
		w.wantMails(w.sending.Delay + maxDelay)
		if want := []module.UserDevice{{User: name1}}; !slices.Equal(r.looked, want) {
			t.Errorf("asked for %v, want %v", r.looked, want)
		}
	})
}

// A host dies before each of its steps, and an event comes while no host runs.
func TestAHostDiesWhileItSendsAMail(t *testing.T) {
	const forever = 1 << 40
	doubled, survived := 0, false
	for steps := 0; !survived; steps++ {
		withMail(t, func(w *world, _ *reader, b *mailbox) {
			var left atomic.Int64
			left.Store(forever)
			step := func() error {
				if left.Add(-1) < 0 {
					return errors.New("dead")
				}
				return nil
			}
			w.sending.Repeat = time.Hour
			w.setMail(name1, address)
			w.queue.Fail = func(operation string, _ mxid.UserID) error {
				if !slices.Contains([]string{"claim", "sent", "read", "complete", "postpone"}, operation) {
					return nil
				}
				return step()
			}
			b.answer = func(context.Context, module.Mail) error { return step() }
			d, stop := w.hostOn(w.queue, w)
			w.notify(d, 1, "!r:h", name1)
			left.Store(int64(steps))
			time.Sleep(w.sending.Delay + 2*time.Second)
			w.notify(d, 2, "!r:h", name1)
			survived = left.Swap(-forever) >= 0
			stop()
			w.queue.Fail, b.answer = nil, nil
			w.host()
			time.Sleep(w.sending.Delay + w.sending.Repeat + time.Minute)
			texts, events := map[string]string{}, map[string]int{}
			for _, m := range b.got() {
				if text, again := texts[m.Mail.ID]; again {
					if doubled++; text != m.Text {
						t.Errorf("after %d steps: %s became %s", steps, text, m.Text)
					}
					continue
				}
				texts[m.Mail.ID] = m.Text
				for _, e := range m.events() {
					events[e]++
				}
			}
			if len(b.got()) > 3 || len(events) != 2 || events["$1"] != 1 || events["$2"] != 1 || w.queue.Waiting() != 0 {
				t.Errorf("after %d steps: %d mails have %v, %d are left", steps, len(b.got()), events, w.queue.Waiting())
			}
		})
	}
	if doubled == 0 {
		t.Error("no mail was doubled")
	}
}

func (w *world) mailUsers(n int, address string) (all []mxid.UserID) {
	for i := range n {
		w.setMail(name(i), fmt.Sprintf(address, i))
		all = append(all, name(i))
	}
	return all
}

// wantEach checks that each user got one mail.
func (w *world) wantEach(users int) {
	w.t.Helper()
	got := map[string]int{}
	for _, m := range w.mailbox.got() {
		got[m.Mail.To]++
	}
	if len(got) != users || len(w.mailbox.got()) != users {
		w.t.Errorf("%d mails for %d users, want %d", len(w.mailbox.got()), len(got), users)
	}
}

func TestManyMailsAreDueAtOnce(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		users := many(3000)
		w.cfg.MaxPerGateway = 16
		b.answer = func(context.Context, module.Mail) error {
			time.Sleep(20 * time.Millisecond)
			return nil
		}
		all := w.mailUsers(users, "user@%d.example.org")
		w.set(name(0), "key", "gw")
		d := w.host()
		w.notify(d, 1, "!r:h", all...)
		time.Sleep(w.sending.Delay)
		w.notify(d, 2, "!r:h", name(0))
		synctest.Wait()
		w.want("key", 1, 2)
		took := w.wait(time.Minute, func() bool { return len(b.got()) == users })
		w.wantEach(users)
		if b.mostUnderWay > w.cfg.MaxPerGateway || took < time.Duration(users/16)*20*time.Millisecond {
			t.Errorf("%d mails were under way at once, all took %v", b.mostUnderWay, took)
		}
	})
}

// A server that greylists refuses the first mail to each address for five minutes.
func TestAServerGreylists(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		const users = 200
		began, first := time.Now(), map[string]time.Time{}
		b.answer = func(_ context.Context, mail module.Mail) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if first[mail.To].IsZero() {
				first[mail.To] = time.Now()
			}
			if time.Since(first[mail.To]) < 5*time.Minute {
				return &module.MailError{Outcome: module.Busy, RetryAfter: 5 * time.Minute, Err: errors.New("451")}
			}
			return nil
		}
		d := w.host()
		w.notify(d, 1, "!r:h", w.mailUsers(users, "user@%d.example.org")...)
		w.wait(2*time.Hour, func() bool { return len(b.got()) == users })
		w.wantEach(users)
		if b.tries > 3*users {
			t.Errorf("%d tries", b.tries)
		}
		if took := time.Since(began); took > 30*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// Half of the users read their events before the server comes back, and more come to the others.
func TestAMailServerIsAwayForAnHour(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for label, answer := range map[string]func(context.Context) error{
		"refuses": func(context.Context) error { return refused },
		"421":     func(context.Context) error { return &module.MailError{Err: errors.New("421")} },
		"hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return &module.MailError{Err: ctx.Err()}
		},
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, r *reader, b *mailbox) {
				const users = 100
				b.answer = func(ctx context.Context, _ module.Mail) error { return answer(ctx) }
				all := w.mailUsers(users, "user@%d.example.org")
				all = append(all, "@alone:h") // the only one of the domain
				w.setMail("@alone:h", "alone@another.example.org")
				w.set(name(0), "key", "gw")
				d := w.host()
				w.notify(d, 1, "!r:h", all[:users/2]...)
				w.notify(d, 2, "!r:h", all[users/2:]...)
				time.Sleep(40 * time.Minute)
				w.notify(d, 3, "!r:h", all[users/2:]...)
				time.Sleep(30 * time.Minute)
				r.do(func() { r.read["$1"] = true })
				w.notify(d, 4, "!r:h", name(0))
				synctest.Wait()
				w.want("key", 1, 4)
				r.do(func() { r.read["$4"] = true })
				if d.Stats().CutOff || b.tries > 1500 {
					t.Errorf("%d tries, %+v", b.tries, d.Stats())
				}
				b.set(func() { b.answer = nil })
				w.wait(20*time.Minute, func() bool { return w.queue.Waiting() == 0 })
				w.wantEach(users/2 + 1)
				for _, m := range b.got() {
					if got := fmt.Sprint(m.events()); got != "[$2 $3]" {
						t.Errorf("a mail has %s", got)
					}
				}
			})
		})
	}
}

func TestARefusedAddressLosesItsPusher(t *testing.T) {
	for label, set := range map[string]func(*mailbox){
		"by the server": func(b *mailbox) {
			b.answer = func(context.Context, module.Mail) error {
				return &module.MailError{Outcome: module.Gone, Err: errors.New("550")}
			}
		},
		"by the host": func(b *mailbox) { b.confirmed = func(string) (bool, error) { return false, nil } },
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				set(b)
				d := w.host()
				w.notify(d, 1, "!r:h", w.mailUsers(100, "user@%d.example.org")...)
				time.Sleep(w.sending.Delay + time.Minute)
				synctest.Wait()
				if n := len(w.removed); n < 4 || n > 8 || w.reported(observe.TooManyRejections) != 1 || w.queue.Waiting() != 100-n {
					t.Errorf("%d of 100 pushers were removed, %d wait", n, w.queue.Waiting())
				}
				for _, rejected := range w.rejected {
					if strings.Contains(rejected.Error(), ".example.org") {
						t.Errorf("reported %v", rejected.Error())
					}
				}
				b.set(func() { b.answer, b.confirmed = nil, nil })
				w.wait(time.Hour, func() bool { return w.queue.Waiting() == 0 })
				w.wantEach(100 - len(w.removed))
			})
		})
	}
}

// The host says that an address is no longer the user's. That is no answer of the server, which is away.
func TestAnAddressOfAnotherIsNoAnswerOfTheServer(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		b.answer = func(context.Context, module.Mail) error { return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED} }
		b.confirmed = func(address string) (bool, error) { return strings.HasPrefix(address, "user"), nil }
		d := w.host()
		w.notify(d, 1, "!r:h", w.mailUsers(20, "user@%d.example.org")...)
		time.Sleep(w.sending.Delay)
		w.setMail("@another:h", "another@example.org")
		w.notify(d, 2, "!r:h", "@another:h")
		for range 3 * w.sending.Delay / time.Second {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if n := len(w.removed); d.Stats().Gateways[GateClosed] != 1 && (n > 0 || time.Since(w.began) > w.sending.Delay+time.Minute) {
				t.Fatalf("the server is open at %v, %d pushers are removed", time.Since(w.began), n)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(w.removed) != 1 {
			t.Errorf("removed are %v", w.removed)
		}
	})
}

// What cannot be known now delays a mail.
func TestAMailWaitsForTheHost(t *testing.T) {
	for label, set := range map[string]func(*reader, *mailbox, error){
		"to confirm the address": func(_ *reader, b *mailbox, err error) { b.confirmed = func(string) (bool, error) { return true, err } },
		"for what is read":       func(r *reader, _ *mailbox, err error) { r.do(func() { r.err = err }) },
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, r *reader, b *mailbox) {
				w.setMail(name1, address)
				b.set(func() { set(r, b, module.Unavailable(errors.New("away"))) })
				w.notify(w.host(), 1, "!r:h", name1)
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(b.got()) != 0 || w.queue.Waiting() != 1 || len(w.removed) > 0 {
					t.Errorf("%d mails, %d wait", len(b.got()), w.queue.Waiting())
				}
				b.set(func() { set(r, b, nil) })
				time.Sleep(2 * time.Minute)
				w.wantEach(1)
			})
		})
	}
}

// A mail that cannot be sent is dropped, and the next one is sent.
func TestAnUnfitMailIsDropped(t *testing.T) {
	var refused []bool
	for label, set := range map[string]func(*mailbox){
		"by the server": func(b *mailbox) {
			b.answer = func(_ context.Context, mail module.Mail) error {
				refused = append(refused, strings.Contains(mail.Text, "msgtype"))
				return &module.MailError{Outcome: module.Unfit, Err: errors.New("554")}
			}
		},
		"by the composer": func(b *mailbox) { b.composeError = errors.New("no template") },
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				w.sending.Repeat = time.Hour
				w.setMail(name1, address)
				set(b)
				d := w.host()
				w.notify(d, 1, "!r:h", name1)
				time.Sleep(w.sending.Delay + time.Minute)
				synctest.Wait()
				if w.queue.Waiting() != 0 || w.drops(DropRefused) != 1 || len(w.removed) > 0 {
					t.Errorf("%d wait, dropped %v", w.queue.Waiting(), w.dropped)
				}
				if fmt.Sprint(refused) != "[true false]" && b.composeError == nil {
					t.Errorf("mails with and without the content of events: %v", refused)
				}
				b.set(func() { b.answer, b.composeError = nil, nil })
				w.notify(d, 2, "!r:h", name1)
				time.Sleep(w.sending.Delay + time.Minute)
				w.wantEach(1)
			})
		})
	}
}

// A server takes a message for spam. The mail comes without it, and others wait for none of that.
func TestAMessageInAMailIsTakenForSpam(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		const victims, others = 10, 30
		b.answer = func(_ context.Context, mail module.Mail) error {
			if strings.Contains(mail.To, "victim") && strings.Contains(mail.Text, "msgtype") {
				return &module.MailError{Outcome: module.Failed, Status: 554, Err: errors.New("DATA: the server answers 554 5.7.1")}
			}
			return nil
		}
		d := w.host()
		w.notify(d, 1, "!r:h", w.mailUsers(victims, "victim%d@example.org")...)
		for i := range others {
			w.setMail(name(victims+i), fmt.Sprintf("other%d@example.org", i))
			w.notify(d, 2+i, "!r:h", name(victims+i))
			time.Sleep(2 * time.Minute)
		}
		w.wait(time.Hour, func() bool { return w.queue.Waiting() == 0 }) // nine tries of a victim, some beside a closed gate
		for _, m := range b.got() {
			if late := m.at.Sub(m.Rooms[0].Events[0].Time) - w.sending.Delay; late > 5*time.Second && strings.Contains(m.Mail.To, "other") {
				t.Errorf("a mail to another user came %v late", late)
			}
		}
		w.wantEach(victims + others)
	})
}

// All domains refuse a host that a block list has. What they answer is no answer about a recipient or a mail.
func TestAHostIsOnABlockListForTenMinutes(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		const users = 30
		b.answer = func(context.Context, module.Mail) error {
			return &module.MailError{Outcome: module.Blocked, Status: 554, Err: errors.New("DATA: the server answers 554 5.7.1")}
		}
		d := w.host()
		w.notify(d, 1, "!r:h", w.mailUsers(users, "user@%d.example.org")...)
		time.Sleep(w.sending.Delay + 2*time.Second)
		if w.reported(observe.MailsDelayed) != 1 {
			t.Errorf("%d reports", w.reported(observe.MailsDelayed))
		}
		time.Sleep(10 * time.Minute)
		if len(w.removed) > 0 || w.queue.Waiting() != users || len(w.dropped) > 0 || b.tries > 400 {
			t.Errorf("%d of %d wait, removed %v, dropped %v, %d tries", w.queue.Waiting(), users, w.removed, w.dropped, b.tries)
		}
		b.set(func() { b.answer = nil })
		w.wait(15*time.Minute, func() bool { return w.queue.Waiting() == 0 })
		w.wantEach(users)
	})
}

// Only the newest notifications of a long log are kept.
func TestAMailOfALongLog(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		w.setMail(name1, address)
		w.set(name1, "key", "gw")
		d := w.host()
		for e := range 500 {
			w.notify(d, e, fmt.Sprintf("!%d:h", e%30), name1)
			time.Sleep(time.Second)
		}
		time.Sleep(w.sending.Delay)
		m := b.got()[0]
		if m.Events < w.cfg.MaxBacklog || m.Events > w.cfg.MaxBacklog*3/2 || len(m.events()) != w.sending.MaxEvents || m.Hidden != 10 || m.Rooms[0].Events[0].ID != "$499" {
			t.Errorf("the mail has %d events, %d rooms are hidden, it shows %v", m.Events, m.Hidden, m.events())
		}
		if len(w.got("key")) != 500 || w.queue.Waiting() != 0 {
			t.Errorf("%d reached the phone, %d wait", len(w.got("key")), w.queue.Waiting())
		}
	})
}

// A wrong setting delays all mails. Operators see why: in a report, and in what waits.
func TestAMailThatFailsIsReported(t *testing.T) {
	auth := &module.MailError{Status: 535, Err: errors.New("AUTH: the server answers 535")}
	for label, test := range map[string]struct {
		err      error
		reported bool
		status   int
		class    string
	}{
		"wrong password": {auth, true, 535, "status"},
		"no listener":    {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true, 0, "refused"},
		"no STARTTLS":    {&module.MailError{Err: errors.New("STARTTLS: not offered")}, true, 0, "status"},
		"greylists":      {&module.MailError{Outcome: module.Busy, RetryAfter: time.Minute, Status: 451, Err: errors.New("451")}, false, 451, "status"},
	} {
		t.Run(label, func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				b.answer = func(context.Context, module.Mail) error { return test.err }
				d := w.host()
				w.notify(d, 1, "!r:h", w.mailUsers(100, "u%d@example.org")...)
				time.Sleep(w.sending.Delay + time.Minute)
				synctest.Wait()
				if n := w.reported(observe.MailsDelayed); test.reported && (n < 1 || n > 3) || !test.reported && n > 0 {
					t.Errorf("%d reports in a minute", n)
				}
				if got := ReadLog(name(0), w.log(name(0)))[0]; got.Status != test.status || got.Class != test.class {
					t.Errorf("the last answer is %d, %s", got.Status, got.Class)
				}
			})
		})
	}
}

func TestSendTestMail(t *testing.T) {
	t.Parallel()
	const user mxid.UserID = "@alice:example.org"
	p := pusher.Pusher{Key: pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}, Kind: pusher.Email, Data: `{}`}
	for label, test := range map[string]struct {
		err  error
		want TestResult
	}{
		"accepted":     {nil, TestResult{Outcome: PostDelivered, Class: "status"}},
		"551":          {&module.MailError{Outcome: module.Gone, Status: 551, Err: errors.New("no")}, TestResult{Status: 551, Outcome: PostRejected, Class: "status"}},
		"552":          {&module.MailError{Outcome: module.Unfit, Status: 552, Err: errors.New("no")}, TestResult{Status: 552, Outcome: PostRefused, Class: "status"}},
		"452":          {&module.MailError{Outcome: module.Throttled, Status: 452, Err: errors.New("no")}, TestResult{Status: 452, Outcome: PostThrottled, Class: "status"}},
		"535":          {&module.MailError{Status: 535, Err: errors.New("no")}, TestResult{Status: 535, Outcome: PostFailed, Class: "status"}},
		"no STARTTLS":  {&module.MailError{Err: errors.New("no")}, TestResult{Outcome: PostBlocked, Class: "status"}},
		"no answer":    {&module.MailError{Err: context.DeadlineExceeded}, TestResult{Outcome: PostTimeout, Class: "timeout"}},
		"closed":       {&module.MailError{Err: io.ErrUnexpectedEOF}, TestResult{Outcome: PostFailed, Class: "refused"}},
		"no server":    {&net.DNSError{}, TestResult{Outcome: PostFailed, Class: "dns"}},
		"no listener":  {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, TestResult{Outcome: PostFailed, Class: "refused"}},
		"unknown kind": {errors.New("no"), TestResult{Outcome: PostBlocked, Class: "status"}},
	} {
		b := &mailbox{answer: func(context.Context, module.Mail) error { return test.err }}
		got, err := SendTest(t.Context(), Seams{Mailer: b, MailComposer: b}, user, p, DefaultConfig())
		test.want.Gateway, test.want.Err, test.want.Took = "mail://relay", test.err, got.Took
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v, want %+v", label, got, err, test.want)
		}
		if mails := b.got(); test.err == nil && (mails[0].Mail.To != address || !strings.HasPrefix(mails[0].events()[0], "$pushfx_test_")) {
			t.Errorf("sent %+v", mails)
		}
	}
	if _, err := SendTest(t.Context(), Seams{}, user, p, DefaultConfig()); !errors.Is(err, errNotSentTo) {
		t.Errorf("without a mailer: got %v", err)
	}
}

func TestSettingsOfMailAreValidated(t *testing.T) {
	t.Parallel()
	seams, cfg := Seams{Mailer: &mailbox{}, MailComposer: &mailbox{}, Host: &worldHost{}, Mail: mail.Config{Delay: time.Hour, Repeat: time.Hour}}, DefaultConfig()
	cfg.MaxAge = time.Hour
	_, err := New(seams, cfg)
	for _, want := range []string{"MaxEvents is 0", "together at most 1h0m0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// Hosts without a mailer look more often than the host with one.
func TestAHostWithoutAMailerLeavesMailsToOthers(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		w.setMail(name1, address)
		w.set(name1, "key", "gw")
		w.mailbox = nil
		plain, _ := w.hostOn(w.queue, w)
		w.host()
		w.mailbox = b
		_, stop := w.hostOn(w.queue, w)
		w.notify(plain, 1, "!r:h", name1)
		time.Sleep(5 * time.Minute)
		stop() // the mail is due while no host can send it
		time.Sleep(time.Hour)
		if got := len(b.got()); got != 0 {
			t.Errorf("%d mails by hosts without a mailer", got)
		}
		w.host()
		time.Sleep(time.Minute)
		if got := len(b.got()); got != 1 {
			t.Errorf("%d mails, want 1", got)
		}
	})
}

// Hosts without a mailer have the default delay, whatever the delay of the hosts that send.
func TestTheDelayOfAMailIsTheSendersOwn(t *testing.T) {
	for _, delay := range []time.Duration{20 * time.Second, time.Hour} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			withMail(t, func(w *world, _ *reader, b *mailbox) {
				w.setMail(name1, address)
				w.mailbox = nil
				plain := w.host()
				w.mailbox, w.sending.Delay = b, delay
				w.host()
				w.notify(plain, 1, "!r:h", name1)
				time.Sleep(delay + 2*time.Second)
				w.wantMails(delay)
			})
		})
	}
}

// A host of another version sets pushers of a kind that this host does not know, and sends for them.
func TestAHostLeavesKindsThatItDoesNotKnow(t *testing.T) {
	inBubble(t, func(w *world) {
		const sms = "com.example.sms"
		d := w.host()
		setSMS := func(pushkey string) {
			w.setPusher(name1, pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: sms, Data: `{}`})
		}
		setSMS("+49")
		w.set(name1, "key", "gw")
		w.set(name1, "changes", "gw")
		w.answer("gw", func(_ context.Context, s sent) (module.GatewayAnswer, error) {
			if s.pushkey == "changes" {
				return module.GatewayAnswer{Status: 502}, nil
			}
			return module.GatewayAnswer{Status: 200}, nil
		})
		for e := range 3 {
			w.notify(d, e, "!r:h", name1)
		}
		time.Sleep(time.Second)
		setSMS("changes") // a host may have claimed it
		time.Sleep(time.Hour)
		w.notify(d, 3, "!r:h", name1)
		time.Sleep(time.Minute)
		w.want("key", 0, 1, 2, 3)
		if n := w.queue.Waiting(); n != 8 || w.drops(DropGone) > 0 {
			t.Errorf("%d notifications wait, dropped %v", n, w.dropped)
		}
		if n, reports := d.Stats().NotSent[sms], w.reported(observe.KindNotSent); n != 1 || reports != 1 {
			t.Errorf("%d users wait, %d reports", n, reports)
		}
	})
}

// A pusher of kind http whose backlog a host without a mailer has claimed can become one of kind email.
func TestAPusherThatBecomesEmailWaitsForAMailer(t *testing.T) {
	withMail(t, func(w *world, _ *reader, b *mailbox) {
		w.setApp(name1, pusher.EmailAppID, address, "gw")
		w.answer("gw", always(502))
		w.mailbox = nil
		d := w.host()
		w.notify(d, 1, "!r:h", name1)
		time.Sleep(time.Second)
		w.setMail(name1, address)
		time.Sleep(time.Hour)
		w.mailbox = b
		w.host()
		time.Sleep(2 * time.Minute)
		if got := len(b.got()); got != 1 {
			t.Errorf("%d mails, want 1", got)
		}
	})
}

// setRule changes the user's rules, as the user does.
func (w *world) setRule(user mxid.UserID, kind pushrule.Kind, id, rule string) {
	w.t.Helper()
	draft, err := pushrule.ReadDraft(strictjson.NewReader(rule), kind)
	if err != nil {
		w.t.Fatal(err)
	}
	w.rules.mu.Lock()
	defer w.rules.mu.Unlock()
	set := w.rules.sets[user]
	if err := set.Put(kind, id, draft, pushrule.Position{}); err != nil {
		w.t.Fatal(err)
	}
	w.rules.sets[user] = set
}

// A user mutes a room while a mail waits.
func TestWhatTheRulesMuteByThenIsNotMailed(t *testing.T) {
	const mute = `{"actions":[],"conditions":[{"kind":"event_match","key":"room_id","pattern":"!r:h"}]}`
	for name, test := range map[string]struct {
		rooms []string
		fail  error
		want  string // the events of the mail
		drops int
	}{
		"the only room":             {[]string{"!r:h"}, nil, "[]", 1},
		"a room of two":             {[]string{"!r:h", "!other:h"}, nil, "[$1]", 1},
		"rules that cannot be read": {[]string{"!r:h"}, errors.New("away"), "[]", 0},
		"rules that are damaged":    {[]string{"!r:h"}, fault.New(fault.Database, "damaged"), "[$0]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			withMail(t, func(w *world, r *reader, b *mailbox) {
				w.setMail(name1, address)
				d := w.host()
				for id, room := range test.rooms {
					w.notify(d, id, room, name1)
				}
				time.Sleep(w.sending.Delay - time.Second)
				w.setRule(name1, pushrule.Override, "!r:h", mute)
				w.rules.mu.Lock()
				w.rules.err = test.fail
				w.rules.mu.Unlock()
				time.Sleep(time.Minute)
				synctest.Wait()
				events := []string{}
				for _, m := range b.got() {
					events = append(events, m.events()...)
				}
				if got := fmt.Sprint(events); got != test.want || w.drops(DropMuted) != test.drops {
					t.Errorf("the mails have %s, %d were muted, want %s and %d", got, w.drops(DropMuted), test.want, test.drops)
				}
				if left := w.queue.Waiting(); (left > 0) != (test.fail != nil && test.want == "[]") {
					t.Errorf("%d are left", left)
				}
			})
		})
	}
}
