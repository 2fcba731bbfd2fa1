package fold

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pushfx/pushfx/module/fault"
)

// ErrDamaged is the error of a stored text that breaks its form. A text of another form
// gives a [fault.OtherVersionError].
var ErrDamaged = errors.New("damaged text")

// A text begins with its form, a digit, and its kind. An operation continues with fields
// that are separated by bytes 0.
//
// A record continues with a checksum of the rest, the time of [Record] lost, the actions
// that are not in knownActions, and the rooms in the order of their ids. Each room begins
// with its length and its id, so that a reader can skip it. Numbers are varints, strings
// have their length before them.
const (
	opForm     = '1'
	recordForm = '2'
	recordKind = 'R'
	header     = 2 // bytes
	checksum   = 4 // bytes
	separator  = "\x00"
)

// knownActions are stored as their index. The order is a part of the form.
var knownActions = [...]string{
	`["notify"]`,
	`["notify",{"set_tweak":"sound","value":"default"}]`,
	`["notify",{"set_tweak":"highlight"}]`,
	`["notify",{"set_tweak":"sound","value":"default"},{"set_tweak":"highlight"}]`,
	`["notify",{"set_tweak":"sound","value":"ring"}]`,
}

func checkForm(text string) error {
	if len(text) < header {
		return fmt.Errorf("%w: it has no form", ErrDamaged)
	}
	known := byte(opForm)
	if text[1] == recordKind {
		known = recordForm
	}
	switch {
	case text[0] == known:
		return nil
	case text[0] >= '1' && text[0] <= '9':
		return &fault.OtherVersionError{Data: "unread counts", Form: text[:1]}
	}
	return fmt.Errorf("%w: it has no form", ErrDamaged)
}

// IsRecord reports whether a text is a record's, of any form, as far as its beginning
// shows.
func IsRecord(text string) bool {
	return len(text) >= header && text[0] >= '1' && text[0] <= '9' && text[1] == recordKind
}

// Text returns the stored text of the operation.
func (op Op) Text() string {
	b := make([]byte, 0, header+len(op.Room)+len(op.Thread)+len(op.Actions)+40)
	b = append(b, opForm, byte(op.Kind))
	b = append(append(b, op.Room...), 0)
	b = append(strconv.AppendInt(b, op.Position, 10), 0)
	b = append(append(b, op.Thread...), 0)
	b = strconv.AppendInt(b, op.Time, 10)
	if op.Kind != Notified {
		return string(b)
	}
	b = append(b, 0)
	if op.Highlight {
		b = append(b, 'h')
	}
	if op.Invite {
		b = append(b, 'i')
	}
	if i := slices.Index(knownActions[:], op.Actions); i >= 0 {
		return string(strconv.AppendInt(b, int64(i), 10))
	}
	return string(append(b, op.Actions...))
}

// ReadOp is the inverse of [Op.Text]. Errors: [ErrDamaged], [fault.OtherVersionError].
func ReadOp(text string) (op Op, err error) {
	if err := checkForm(text); err != nil {
		return Op{}, err
	}
	op.Kind = Kind(text[1])
	fields := strings.SplitN(text[header:], separator, 5)
	switch {
	case op.Kind == Notified && len(fields) == 5 && fields[2] != All:
		op.readEffect(fields[4])
	case (op.Kind == Read || op.Kind == Redacted) && len(fields) == 4:
	default:
		return Op{}, fmt.Errorf("%w: an operation %q with %d fields", ErrDamaged, text[1], len(fields))
	}
	op.Room, op.Thread = fields[0], fields[2]
	var errs [2]error
	op.Position, errs[0] = strconv.ParseInt(fields[1], 10, 64)
	op.Time, errs[1] = strconv.ParseInt(fields[3], 10, 64)
	if err := errors.Join(errs[:]...); err != nil || op.Room == "" || op.Position <= 0 || op.Time < 0 || op.Text() != text {
		return Op{}, fmt.Errorf("%w: an operation that breaks its form", ErrDamaged)
	}
	return op, nil
}

func (op *Op) readEffect(text string) {
	op.Actions, op.Highlight = strings.CutPrefix(text, "h")
	op.Actions, op.Invite = strings.CutPrefix(op.Actions, "i")
	if i, err := strconv.Atoi(op.Actions); err == nil && i >= 0 && i < len(knownActions) {
		op.Actions = knownActions[i]
	}
}

func withChecksum(rest string) string {
	b := make([]byte, 0, header+checksum+len(rest))
	b = binary.LittleEndian.AppendUint32(append(b, recordForm, recordKind), crc32.ChecksumIEEE([]byte(rest)))
	return string(append(b, rest...))
}

// cutChecksum returns the rest of a record's text after the checksum; ok is false if the
// checksum is wrong.
func cutChecksum(text string) (rest string, ok bool) {
	if len(text) < header+checksum {
		return "", false
	}
	rest = text[header+checksum:]
	return rest, crc32.ChecksumIEEE([]byte(rest)) == binary.LittleEndian.Uint32([]byte(text[header:]))
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// writer writes rooms, which share actions.
type writer struct {
	actions map[string]uint64 // indexes
	own     []string          // actions that are not in knownActions
	bytes   int               // of own
}

func newWriter() *writer {
	w := &writer{actions: make(map[string]uint64, len(knownActions))}
	for i, actions := range knownActions {
		w.actions[actions] = uint64(i)
	}
	return w
}

// The flags of a room say which parts follow.
const (
	roomIsCut = 1 << iota
	roomHasOmitted
	roomHasRedacted
	roomHasSeen
	roomFlags // a bound
)

func (w *writer) room(b []byte, r *Room) []byte {
	r.unpack()
	flags := uint64(0)
	for i, has := range []bool{r.isCut, len(r.omitted) > 0, len(r.redacted) > 0, len(r.seen) > 0} {
		if has {
			flags |= 1 << i
		}
	}
	for _, n := range []int64{r.touched, r.all, r.main} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, flags)
	threads := r.allThreads()
	b = binary.AppendUvarint(b, uint64(len(threads)))
	for _, id := range threads {
		b = binary.AppendUvarint(appendString(b, id), uint64(r.threads[id]))
	}
	b = w.notifications(b, r.unread, threads)
	if flags&roomHasOmitted != 0 {
		b = appendOmitted(b, r.omitted, threads)
	}
	if flags&roomHasRedacted != 0 {
		b = appendRedacted(b, r)
	}
	if flags&roomHasSeen != 0 {
		b = w.notifications(b, r.seen, threads)
	}
	return b
}

// The flags of a notification. The index of its thread follows.
const (
	isHighlight = 1 << iota
	isInvite
	threadShift = iota
)

func (w *writer) notifications(b []byte, all []Notification, threads []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	before := Notification{}
	for _, n := range all {
		flags := indexOf(n.Thread, threads) << threadShift
		if n.Highlight {
			flags |= isHighlight
		}
		if n.Invite {
			flags |= isInvite
		}
		b = binary.AppendUvarint(b, uint64(n.Position-before.Position))
		b = binary.AppendVarint(b, n.Time-before.Time)
		b = binary.AppendUvarint(b, flags)
		b = binary.AppendUvarint(b, w.index(n))
		before = n
	}
	return b
}

// indexOf returns the index of a thread: 0 for Main, above it those of the sorted names,
// and one more for All.
func indexOf(thread string, threads []string) uint64 {
	switch thread {
	case Main:
		return 0
	case All:
		return uint64(len(threads)) + 1
	}
	at, _ := slices.BinarySearch(threads, thread)
	return uint64(at) + 1
}

func appendOmitted(b []byte, omitted map[string]omission, threads []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(omitted)))
	for _, thread := range slices.SortedFunc(maps.Keys(omitted), func(a, b string) int {
		return cmp.Compare(indexOf(a, threads), indexOf(b, threads))
	}) {
		b = binary.AppendUvarint(b, indexOf(thread, threads))
		o := omitted[thread]
		for i := range o.n {
			b = binary.AppendUvarint(b, uint64(o.n[i]))
			b = binary.AppendUvarint(b, uint64(o.upTo[i]))
		}
	}
	return b
}

func appendRedacted(b []byte, r *Room) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.redacted)))
	before := int64(0)
	for _, position := range slices.Sorted(maps.Keys(r.redacted)) {
		b = binary.AppendUvarint(b, uint64(position-before))
		b = binary.AppendUvarint(b, uint64(r.redacted[position]))
		before = position
	}
	return b
}

// allThreads returns the threads with names in the room, sorted. Each is stored once.
func (r *Room) allThreads() []string {
	hasName := func(n Notification) bool { return n.Thread != Main }
	if len(r.threads)+len(r.omitted) == 0 && !slices.ContainsFunc(r.unread, hasName) && !slices.ContainsFunc(r.seen, hasName) {
		return nil
	}
	set := map[string]bool{}
	for id := range r.threads {
		set[id] = true
	}
	for id := range r.omitted {
		set[id] = true
	}
	for _, all := range [][]Notification{r.unread, r.seen} {
		for _, n := range all {
			set[n.Thread] = true
		}
	}
	delete(set, Main)
	delete(set, All)
	return slices.Sorted(maps.Keys(set))
}

// index returns the index of a notification's actions. Beyond maxActionBytes, it is the
// index of notify alone.
func (w *writer) index(n Notification) uint64 {
	i, found := w.actions[n.Actions]
	if found {
		return i
	}
	if w.bytes+len(n.Actions) > maxActionBytes {
		return w.actions[Simplest(n.Highlight)]
	}
	i = uint64(len(w.actions))
	w.actions[n.Actions] = i
	w.own = append(w.own, n.Actions)
	w.bytes += len(n.Actions)
	return i
}

// Simplest returns the actions that stand for longer ones.
func Simplest(highlight bool) string {
	if highlight {
		return knownActions[2]
	}
	return knownActions[0]
}

// read adds the wanted rooms of a record's text. Expected is about their number.
func (r *Record) read(text string, wanted func(room string) bool, expected int) error {
	if err := checkForm(text); err != nil {
		return err
	}
	rest, ok := cutChecksum(text)
	if !ok {
		return fmt.Errorf("%w: a record with a wrong checksum", ErrDamaged)
	}
	in := &reader{rest: rest}
	r.lost = in.number()
	actions := slices.Clone(knownActions[:])
	for range in.length(1) {
		actions = append(actions, in.string())
	}
	r.readRooms(in, actions, wanted, expected)
	if in.failed {
		return fmt.Errorf("%w: a record that breaks its form", ErrDamaged)
	}
	return nil
}

// readRooms adds the wanted rooms in the rest of a record, which are in the order of their
// ids.
func (r *Record) readRooms(in *reader, actions []string, wanted func(room string) bool, expected int) {
	rooms := make([]Room, 0, expected) // fewer allocations than one for each room
	for before := ""; in.rest != ""; {
		body := &reader{rest: in.string()}
		id := body.string()
		if wanted(id) {
			if len(rooms) == cap(rooms) {
				rooms = make([]Room, 0, 16)
			}
			rooms = append(rooms, Room{})
			room := &rooms[len(rooms)-1]
			body.room(room, actions)
			r.rooms[id] = room
			body.failed = body.failed || body.rest != ""
		}
		if body.failed || id <= before {
			in.fail()
		}
		before = id
	}
}

// reader reads the parts of a record. After a failure all parts are zero.
type reader struct {
	rest   string
	failed bool
}

func (in *reader) fail() {
	in.rest, in.failed = "", true
}

func (in *reader) uvarint() (n uint64) {
	for i := range len(in.rest) {
		b := in.rest[i]
		if i == binary.MaxVarintLen64-1 && b > 1 {
			break
		}
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			in.rest = in.rest[i+1:]
			return n
		}
	}
	in.fail()
	return 0
}

// number reads a number that is not negative.
func (in *reader) number() int64 {
	n := in.uvarint()
	if n > math.MaxInt64 {
		in.fail()
		return 0
	}
	return int64(n)
}

// length reads the number of items that follow, each of at least size bytes.
func (in *reader) length(size int) int {
	n := in.uvarint()
	if n > uint64(len(in.rest)/size) {
		in.fail()
		return 0
	}
	return int(n)
}

func (in *reader) string() (s string) {
	n := in.length(1)
	s, in.rest = in.rest[:n], in.rest[n:]
	return s
}

func (in *reader) room(r *Room, actions []string) {
	*r = Room{touched: in.number(), all: in.number(), main: in.number(), isSorted: true}
	flags := in.uvarint()
	if flags >= roomFlags {
		in.fail()
		return
	}
	r.isCut = flags&roomIsCut != 0
	roots := in.threads(r)
	in.packed(r, roots, actions)
	if flags&roomHasOmitted != 0 {
		in.omitted(r, roots)
	}
	if flags&roomHasRedacted != 0 {
		in.redacted(r)
	}
	if flags&roomHasSeen != 0 {
		p := &packed{n: in.length(4), roots: roots, actions: actions}
		in.notifications(p, func(_ int, n Notification) { r.seen = append(r.seen, n) })
	}
}

func (in *reader) packed(r *Room, roots, actions []string) {
	n := in.length(4)
	if n == 0 {
		return
	}
	p := &packed{text: in.rest, n: n, roots: roots, actions: actions}
	if p.byThread = p.main[:]; len(roots) > 0 {
		p.byThread = make([]Counts, 1+len(roots))
	}
	in.notifications(p, func(thread int, n Notification) { p.byThread[thread] = p.byThread[thread].with(n) })
	r.packed = p
}

func (in *reader) omitted(r *Room, roots []string) {
	names := append([]string{Main}, append(roots, All)...)
	r.omitted = map[string]omission{}
	before := -1
	for range in.length(5) {
		var o omission
		at := in.uvarint()
		for i := range o.n {
			n := in.uvarint()
			o.n[i], o.upTo[i] = int(min(n, maxOmitted)), in.number()
			if (n > 0) != (o.upTo[i] > 0) || n > maxOmitted {
				in.fail()
			}
		}
		if at >= uint64(len(names)) || int(at) <= before || o.n[0]+o.n[1] == 0 {
			in.fail()
			return
		}
		r.omitted[names[at]], before = o, int(at)
	}
}

func (in *reader) redacted(r *Room) {
	r.redacted = map[int64]int64{}
	position := int64(0)
	for range in.length(2) {
		more := in.number()
		if more == 0 || position+more < position {
			in.fail()
			return
		}
		position += more
		r.redacted[position] = in.number()
	}
}

// packed are the notifications of a room in their encoded form. Counting, the
// most frequent use, need not decode them.
type packed struct {
	text     string
	n        int
	roots    []string // of threads
	actions  []string
	byThread []Counts  // counts of the main thread, then of each root
	main     [1]Counts // memory of byThread without roots
}

func (p *packed) counts() (main Counts, threads map[string]Counts) {
	for i, root := range p.roots {
		if counts := p.byThread[i+1]; counts.Notifications > 0 {
			if threads == nil {
				threads = map[string]Counts{}
			}
			threads[root] = counts
		}
	}
	return p.byThread[0], threads
}

func (r *Room) unpack() {
	p := r.packed
	if p == nil {
		return
	}
	r.packed, r.unread = nil, make([]Notification, 0, p.n)
	in := &reader{rest: p.text}
	in.notifications(p, func(_ int, n Notification) { r.unread = append(r.unread, n) })
}

// notifications calls do for each notification, with the index of its thread.
func (in *reader) notifications(p *packed, do func(thread int, n Notification)) {
	n := Notification{}
	for range p.n {
		before := n
		n.Position += in.number()
		zigzag := in.uvarint()
		n.Time += int64(zigzag>>1) ^ -int64(zigzag&1)
		flags, action := in.uvarint(), in.uvarint()
		thread := flags >> threadShift
		if thread > uint64(len(p.roots)) || action >= uint64(len(p.actions)) || n.Position <= before.Position || n.Time < 0 {
			in.fail()
			return
		}
		n.Thread, n.Highlight, n.Invite, n.Actions = Main, flags&isHighlight != 0, flags&isInvite != 0, p.actions[action]
		if thread > 0 {
			n.Thread = p.roots[thread-1]
		}
		do(int(thread), n)
	}
}

func (in *reader) threads(r *Room) []string {
	threads := make([]string, in.length(2))
	for i := range threads {
		threads[i] = in.string()
		if mark := in.number(); mark > 0 {
			if r.threads == nil {
				r.threads = map[string]int64{}
			}
			r.threads[threads[i]] = mark
		}
		if threads[i] == All || threads[i] == Main || i > 0 && threads[i] <= threads[i-1] {
			in.fail()
			return nil
		}
	}
	return threads
}
