package delivery

import (
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// wireVersion is the first byte of what this version writes.
const wireVersion = 1

// recipient is a user whom an event is to be notified to.
type recipient struct {
	user    mxid.UserID
	outcome int // its place among the entry's
}

// encodeEntry returns an entry of a shard's log: what notifications of an event
// have in common, and those of the shard's users whom they are for.
func encodeEntry(ev *event, outcomes []outcome, recipients []recipient) []byte {
	dst := ev.appendTo([]byte{wireVersion})
	dst = appendNumber(dst, int64(len(outcomes)))
	for _, o := range outcomes {
		dst = o.appendTo(dst)
	}
	dst = appendNumber(dst, int64(len(recipients)))
	for _, r := range recipients {
		dst = appendText(appendNumber(dst, int64(r.outcome)), string(r.user))
	}
	if ev.traceparent != "" {
		dst = appendText(dst, ev.traceparent)
	}
	return dst
}

func (ev *event) appendTo(dst []byte) []byte {
	dst = appendFlag(dst, ev.countsOnly)
	for _, text := range []string{
		ev.id, ev.room, ev.kind, ev.sender, ev.member, ev.senderName, ev.roomName, ev.roomAlias, ev.content,
	} {
		dst = appendText(dst, text)
	}
	return appendNumber(dst, ev.lifetime.Milliseconds())
}

func (r *wireReader) event() *event {
	ev := &event{countsOnly: r.flag()}
	for _, text := range []*string{
		&ev.id, &ev.room, &ev.kind, &ev.sender, &ev.member, &ev.senderName, &ev.roomName, &ev.roomAlias, &ev.content,
	} {
		*text = r.text()
	}
	ev.lifetime = time.Duration(r.number()) * time.Millisecond
	return ev
}

func (o outcome) appendTo(dst []byte) []byte {
	return appendText(appendFlag(dst, o.high), o.tweaks)
}

func (r *wireReader) outcome() outcome { return outcome{high: r.flag(), tweaks: r.own()} }

// entryReader reads an entry, and its recipients one after the other.
type entryReader struct {
	event    *event
	outcomes []outcome
	total    int // recipients
	next     int // the place of the one that is read next
	rest     wireReader
}

func readEntry(data string) (*entryReader, error) {
	r := wireReader{rest: data}
	if r.byte() != wireVersion {
		return nil, errGarbled
	}
	e := &entryReader{event: r.event()}
	if end := len(data) - len(r.rest); end < len(data)/2 { // one that is held outlives the entry
		own := wireReader{rest: strings.Clone(data[1:end])}
		e.event = own.event()
	}
	e.outcomes = make([]outcome, r.count())
	for i := range e.outcomes {
		e.outcomes[i] = r.outcome()
	}
	e.total = r.count()
	e.rest = r
	recipients := *e
	if !recipients.skipAll() {
		return nil, errGarbled
	}
	if rest := recipients.rest; rest.rest != "" {
		e.event.traceparent = rest.own()
	}
	return e, nil
}

func (e *entryReader) skipAll() bool {
	for e.next < e.total {
		if r := e.read(); r.outcome < 0 || r.outcome >= len(e.outcomes) {
			return false
		}
	}
	return !e.rest.garbled
}

// read returns the next recipient. There must be one.
func (e *entryReader) read() recipient {
	e.next++
	outcome := e.rest.number()
	return recipient{outcome: int(outcome), user: mxid.UserID(e.rest.text())}
}
