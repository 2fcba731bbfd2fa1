package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
)

// MailConfig configures mails to pushers of kind email.
type MailConfig struct {
	// Delay is how old an unread notification is before it is mailed. 1 s to 12 h; default
	// 10 min.
	Delay time.Duration

	// Repeat is the least time between two mails to a user who has read nothing of the first
	// one. At most 24 h, and together with Delay at most MaxAge. Default 23 h.
	Repeat time.Duration

	// MaxEvents bounds the events that a mail shows: the newest ones. It counts the others. 1 to
	// 200; default 20.
	MaxEvents int

	// Content is FullContent, or NamesOnly for mails without the content of events. A mail has
	// no more than [Config.Content] allows. Default FullContent.
	Content ContentPolicy
}

const maxRepeat = 24 * time.Hour // [module.DeliveryQueue.Sent] has what was mailed last for a day

var errMailAge = errors.New("the sum of Mail.Delay and Mail.Repeat is above MaxAge")

const (
	maxMailed    = 1000 // notifications of a mail; further ones wait for the next one
	maxMailRooms = 20   // that a mail is remembered by

	// maxMails bounds the mails of a pusher in a day: a redacted event counts as read, so that a
	// sender could cause one mail after the other. Further ones come after Repeat.
	maxMails = 12

	// askMail bounds the time for each question to the host: all of them are asked within a lease.
	askMail = time.Second

	// A mail waits longer for its next try than a notification does: nobody waits for it. See
	// [content.Answer.RetryIn].
	mailPatience = 20

	// retryMail is the longest wait after an error of the host: of module.Unread, or when it
	// confirms an address.
	retryMail = time.Minute
)

// lastMail is the mail that a pusher got last. The queue has its text; see
// [module.DeliveryQueue.Sent].
type lastMail struct {
	At     int64          `json:"t"` // in milliseconds
	Events []content.Meta `json:"e"` // the newest of each room
	Day    int64          `json:"d"` // begin of the day in which N mails were sent
	N      int            `json:"n"`
	SetAt  int64          `json:"s"` // of the pusher
}

func readLastMail(text string) (last lastMail) {
	if json.Unmarshal([]byte(text), &last) != nil {
		return lastMail{}
	}
	return last
}

// next returns the text of the mail after last.
func (last lastMail) next(now time.Time, setAt int64, all []content.Mailed) string {
	seen := map[string]bool{}
	last.SetAt, last.At, last.Events, last.N = setAt, now.UnixMilli(), nil, last.N+1
	if now.Sub(time.UnixMilli(last.Day)) >= maxRepeat {
		last.Day, last.N = last.At, 1
	}
	for _, m := range slices.Backward(all) {
		if !seen[m.Meta.Room] && len(last.Events) < maxMailRooms {
			seen[m.Meta.Room], last.Events = true, append(last.Events, m.Meta)
		}
	}
	text, _ := json.Marshal(last) // strings and numbers
	return string(text)
}

// mailing is a mail that is being made of all that waits for a pusher.
type mailing struct {
	last       lastMail
	id         string
	place, end int64 // of the notifications that it is about
	all        []content.Mailed
	dropped    map[DropReason]int
}

// sendMail sends what waits as one mail, drops it or postpones it, and reports whether to go on.
//
// The trouble of the pusher has the end of the mail before it is sent. So after the death of the
// host another one sends the same mail again, with the same id, which follows from the pusher's place.
func (s *sending) sendMail(life context.Context) bool {
	if goOn := s.readTarget(life); s.target == nil {
		return goOn
	}
	if !s.d.serves(s.target.Kind) {
		return true
	}
	if !s.takeTurn(life) {
		return false
	}
	text, err := s.d.queue.Sent(life, s.claim.User, s.claim.Pusher)
	if err != nil {
		s.releaseAfter("read what was mailed", err)
		return false
	}
	m := &mailing{last: readLastMail(text), place: s.claim.Number, dropped: map[DropReason]int{}}
	switch {
	case s.trouble.Mail == 0 && s.isTooSoon(life, m.last), !s.readMailing(life, m):
		return false
	case len(m.all) == 0:
		return s.endMailing(life, m, module.Done{})
	}
	if wait := s.mailWait(life, m); wait > 0 {
		s.postpone(wait)
		return false
	}
	if err := s.keep(life); err != nil {
		s.releaseAfter("renew a claim", err)
		return false
	}
	isConfirmed, err := s.isConfirmed(life)
	switch {
	case err != nil:
		return s.postponeMail(life, "confirm an email address", err)
	case !isConfirmed:
		return s.reject(life, posted{Answer: content.Answer{Outcome: module.Gone, Class: content.ClassStatus}}, m.place)
	}
	return s.sendMailing(life, m)
}

func (s *sending) isConfirmed(life context.Context) (bool, error) {
	if s.d.confirm == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(life, maxAwait)
	defer cancel()
	return s.d.confirm(ctx, s.claim.User, s.target.Key.Pushkey)
}

// isTooSoon postpones the mail if the last one was sent within Repeat, and the user has read
// nothing of it. A user who has set the pusher again since then wants mails.
func (s *sending) isTooSoon(life context.Context, last lastMail) bool {
	wait := time.UnixMilli(last.At).Add(s.d.cfg.Mail.Repeat).Sub(s.d.clock())
	if wait <= 0 || last.SetAt != s.target.SetAt && last.N < maxMails {
		return false
	}
	if s.d.hasUnread && last.N < maxMails {
		read, err := s.read(life, last.Events)
		switch {
		case err != nil:
			s.postponeMail(life, "read which events are read", err)
			return true
		case slices.Contains(read, true):
			return false
		}
		wait = min(wait, s.d.cfg.Mail.Delay) // the user may read it at any time
	}
	s.postpone(wait)
	return true
}

// postponeMail makes the pusher due within a minute, after an error of the host.
func (s *sending) postponeMail(life context.Context, doing string, err error) bool {
	if life.Err() != nil {
		s.release()
		return false
	}
	s.d.failures.add(doing, err)
	s.postpone(retryMail/2 + rand.N(retryMail/2))
	return false
}

// read returns which events are read. Events with unreadable counts are unread.
func (s *sending) read(life context.Context, events []content.Meta) (read []bool, err error) {
	read = make([]bool, len(events))
	if !s.d.hasUnread {
		return read, nil
	}
	var questions []*question[module.Result[module.UnreadState]]
	for _, m := range events {
		questions = append(questions, s.d.states.add(s.eventOf(m)))
	}
	ctx, cancel := context.WithTimeout(life, askMail)
	defer cancel()
	for i, q := range questions {
		state, found := q.wait(ctx, askMail)
		switch {
		case !found:
			return nil, module.Unavailable(errNoResult)
		case state.Err != nil && fault.KindOf(state.Err) != fault.Database:
			return nil, state.Err
		}
		read[i] = state.Err == nil && state.Value.IsRead
	}
	return read, nil
}

// readMailing reads what waits, and leaves out what needs no mail.
func (s *sending) readMailing(life context.Context, m *mailing) (ok bool) {
	waiting, end := s.known, s.end
	if len(waiting) == 0 || len(waiting) < s.left { // otherwise the claim came with all
		var err error
		if waiting, end, err = s.d.queue.Read(life, s.claim, maxMailed); err != nil {
			s.releaseAfter("read a log", err)
			return false
		}
	}
	if s.known, s.end, m.end = nil, end, end; len(waiting) == maxMailed {
		m.end = waiting[maxMailed-1].Number + 1
	}
	if len(waiting) > 0 {
		m.id = content.MailID(s.claim.Pusher, m.place, waiting[0].ID)
	}
	if s.trouble.Mail > 0 { // the mail that a host has begun to send
		m.end = min(m.end, s.trouble.Mail)
	}
	var events []content.Meta
	for _, n := range waiting {
		meta, err := content.ReadMeta(n.Meta)
		switch {
		case n.Number >= m.end:
		case err != nil:
			m.dropped[DropUnreadable]++
		case n.Priority == module.CountsOnly:
		case !s.d.clock().Before(time.UnixMilli(meta.Expires)):
			m.dropped[DropExpired]++
		default:
			m.all, events = append(m.all, content.Mailed{Notification: n, Meta: meta}), append(events, meta)
		}
	}
	read, err := s.read(life, events)
	if err != nil {
		return s.postponeMail(life, "read which events are read", err)
	}
	var left []content.Mailed
	for i, one := range m.all {
		if !read[i] {
			left = append(left, one)
		}
	}
	m.dropped[DropRead], m.all = len(m.all)-len(left), left
	return true
}

// mailWait returns how long a mail waits until its oldest notification is old enough, or because
// the user is active. It asks the host about that once.
func (s *sending) mailWait(life context.Context, m *mailing) time.Duration {
	if s.trouble.Mail > 0 {
		return 0
	}
	if wait := time.UnixMilli(m.all[0].Meta.Added).Add(s.d.cfg.Mail.Delay).Sub(s.d.clock()); wait > 0 {
		return wait
	}
	if !s.d.hasDelays || s.trouble.Delayed == m.place {
		return 0
	}
	wait, _ := s.d.delays.get(life, module.UserDevice{User: s.claim.User}, askMail)
	if wait > 0 {
		s.trouble.Generation, s.trouble.Delayed = s.target.SetAt, m.place
	}
	return min(wait, maxDelay)
}

// sendMailing composes and sends a mail, and reports whether to go on.
func (s *sending) sendMailing(life context.Context, m *mailing) bool {
	cfg := s.d.cfg.Mail
	if s.trouble.IDOnly && s.trouble.Of == m.place {
		cfg.Content = NamesOnly
	}
	mail, err := compose(s.d.composer, s.claim.User, s.target, cfg, m)
	if err != nil {
		s.d.failures.add("compose a mail", err)
		m.dropped[DropRefused] += len(m.all)
		return s.endMailing(life, m, module.Done{})
	}
	s.trouble.Generation, s.trouble.Mail = s.target.SetAt, m.end
	if _, ok := s.complete(life, module.Done{To: m.place}); !ok || s.claim.Number != m.place {
		return ok // another host has sent it meanwhile
	}
	if err := s.keep(life); err != nil {
		s.releaseAfter("renew a claim", err)
		return false
	}
	// A mail has no span: it is about many events, hours after them.
	var failed error
	p := s.request(life, "", func(ctx context.Context) content.Answer {
		failed = s.d.mailer.SendMail(ctx, mail)
		return judgeMail(failed)
	})
	if p.Outcome == module.Failed || p.Outcome == module.Blocked {
		s.d.failures.report(observe.MailsDelayed, "send a mail", failed)
	}
	if p.Outcome == module.Gone {
		s.trouble.Mail = content.MailFailed
		return s.reject(life, p, m.place)
	}
	s.endTurnAfter(p.Answer)
	switch p.Outcome {
	case module.Delivered:
		return s.endMailing(life, m, module.Done{Answered: true, Sent: m.last.next(s.d.clock(), s.target.SetAt, m.all)})
	case module.Unfit:
		trouble, step := s.trouble.After(content.Failure{Answer: p.Answer, Of: m.place})
		if step == content.Again { // without the content of events
			s.trouble = trouble
			return true
		}
		m.dropped[DropRefused] += len(m.all)
		return s.endMailing(life, m, module.Done{Answered: true})
	case "":
		if !p.isLost {
			s.release()
		}
		return false
	}
	s.trouble.Mail = content.MailFailed
	return s.notDelivered(life, p, m.place)
}

// compose writes a mail. It goes to the address of the pusher, whatever the composer returns.
func compose(by module.MailComposer, user mxid.UserID, to *content.Target, cfg MailConfig, m *mailing) (module.Mail, error) {
	digest := content.MailDigest(user, m.all, cfg.MaxEvents, cfg.Content == FullContent)
	digest.To, digest.Lang, digest.ID = to.Key.Pushkey, to.Lang, m.id
	mail, err := by.ComposeMail(digest)
	mail.To, mail.ID = digest.To, digest.ID
	return mail, err
}

// endMailing removes what a mail was about.
func (s *sending) endMailing(life context.Context, m *mailing, d module.Done) bool {
	for reason, n := range m.dropped {
		s.d.dropped(reason, n)
	}
	d.To = max(m.end, m.place)
	s.left = max(0, s.left-len(m.all))
	s.trouble, s.claim.Fails = content.Trouble{}, s.claim.Fails && !d.Answered
	left, ok := s.complete(life, d)
	return ok && left > 0
}

// judgeMail returns what an error of a [module.Mailer] says. Without a code of a server and without
// an outcome, the network or a setting of this host has failed.
func judgeMail(err error) content.Answer {
	failed, a := new(module.MailError), content.Answer{Outcome: module.Delivered, Class: content.ClassStatus}
	if err == nil {
		return a
	}
	errors.As(err, &failed)
	if a.Status, a.RetryAfter, a.Outcome = failed.Status, failed.RetryAfter, failed.Outcome; a.Outcome != "" || a.Status > 0 {
		a.Outcome = cmp.Or(a.Outcome, module.Failed)
		return a
	}
	if a.Class = classOf(err); a.Class == content.ClassRefused && !isNetwork(err) {
		a.Class, a.Outcome = content.ClassStatus, module.Blocked // for example a server without STARTTLS
		return a
	}
	return content.AnswerOf(module.GatewayAnswer{}, a.Class, "")
}

func isNetwork(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
