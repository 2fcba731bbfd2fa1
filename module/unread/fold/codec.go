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
)

// The errors of stored texts.
var (
	ErrDamaged   = errors.New("damaged text")
	ErrLaterForm = errors.New("text of a later form")
)

// A text begins with its form, a digit, and its kind. An operation continues with fields
// that are separated by bytes 0.
//
// A record continues with a checksum of the rest, the actions that are not in
// knownActions, and the rooms in the order of their ids. Each room begins with its length
// and its id, so that a reader can skip it. Numbers are varints, strings have their length
// before them.
const (
	form       = '1'
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
	switch {
	case len(text) >= header && text[0] == form:
		return nil
	case text != "" && text[0] > form && text[0] <= '9':
		return fmt.Errorf("%w %c, known is %c", ErrLaterForm, text[0], form)
	}
	return fmt.Errorf("%w: it has no form", ErrDamaged)
}

// IsRecord reports whether a text is a record's, as far as its beginning shows.
func IsRecord(text string) bool {
	return len(text) >= header && text[0] == form && text[1] == recordKind
}

// Text returns the stored text of the operation.
func (op Op) Text() string {
	b := make([]byte, 0, header+len(op.Room)+len(op.Thread)+len(op.Actions)+40)
	b = append(b, form, byte(op.Kind))
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
	if i := slices.Index(knownActions[:], op.Actions); i >= 0 {
		return string(strconv.AppendInt(b, int64(i), 10))
	}
	return string(append(b, op.Actions...))
}

// ReadOp is the inverse of [Op.Text]. Errors: [ErrDamaged], [ErrLaterForm].
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
	if i, err := strconv.Atoi(op.Actions); err == nil && i >= 0 && i < len(knownActions) {
		op.Actions = knownActions[i]
	}
}

// Text returns the stored text of the record, of at most [MaxBytes]. Until the text fits, it
// halves the number of notifications and threads that each room keeps; below one, it drops
// rooms.
func (r Record) Text() string {
	rooms := slices.Sorted(maps.Keys(r.rooms))
	for limit := MaxNotifications; ; limit /= 2 {
		if limit == 0 {
			rooms = r.dropOldest(rooms)
			limit = 1
		}
		for _, room := range r.rooms {
			room.settle(limit)
		}
		if text := r.encode(rooms); len(text) <= MaxBytes {
			return text
		}
	}
}

// dropOldest drops the quarter of the rooms that had no operation for the longest time.
func (r Record) dropOldest(rooms []string) []string {
	slices.SortFunc(rooms, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.rooms[b].touched, r.rooms[a].touched), cmp.Compare(a, b))
	})
	rooms = rooms[:len(rooms)*3/4]
	slices.Sort(rooms)
	return rooms
}

func (r Record) encode(rooms []string) string {
	w := writer{actions: map[string]uint64{}}
	for i, actions := range knownActions {
		w.actions[actions] = uint64(i)
	}
	for _, id := range rooms {
		r.rooms[id].unpack()
	}
	var all, body []byte
	for _, id := range rooms {
		body = w.room(appendString(body[:0], id), r.rooms[id])
		all = append(binary.AppendUvarint(all, uint64(len(body))), body...)
	}
	head := binary.AppendUvarint(nil, uint64(len(w.own)))
	for _, actions := range w.own {
		head = appendString(head, actions)
	}
	return withChecksum(string(append(head, all...)))
}

func withChecksum(rest string) string {
	b := make([]byte, 0, header+checksum+len(rest))
	b = binary.LittleEndian.AppendUint32(append(b, form, recordKind), crc32.ChecksumIEEE([]byte(rest)))
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

type writer struct {
	actions map[string]uint64 // indexes
	own     []string          // actions that are not in knownActions
}

func (w *writer) room(b []byte, r *Room) []byte {
	for _, n := range []int64{r.touched, r.all, r.main} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	threads := r.allThreads()
	b = binary.AppendUvarint(b, uint64(len(threads)))
	for _, id := range threads {
		b = binary.AppendUvarint(appendString(b, id), uint64(r.threads[id]))
	}
	b = binary.AppendUvarint(b, uint64(len(r.unread)))
	before := Notification{}
	for _, n := range r.unread {
		thread := uint64(0)
		if n.Thread != Main {
			at, _ := slices.BinarySearch(threads, n.Thread)
			thread = uint64(at) + 1
		}
		flags := thread << 1
		if n.Highlight {
			flags |= 1
		}
		b = binary.AppendUvarint(b, uint64(n.Position-before.Position))
		b = binary.AppendVarint(b, n.Time-before.Time)
		b = binary.AppendUvarint(b, flags)
		b = binary.AppendUvarint(b, w.index(n.Actions))
		before = n
	}
	return b
}

// allThreads returns the threads with a mark or with notifications, sorted.
func (r *Room) allThreads() []string {
	if len(r.threads) == 0 && !slices.ContainsFunc(r.unread, func(n Notification) bool { return n.Thread != Main }) {
		return nil
	}
	set := map[string]bool{}
	for id := range r.threads {
		set[id] = true
	}
	for _, n := range r.unread {
		set[n.Thread] = true
	}
	delete(set, Main)
	return slices.Sorted(maps.Keys(set))
}

func (w *writer) index(actions string) uint64 {
	i, found := w.actions[actions]
	if !found {
		i = uint64(len(w.actions))
		w.actions[actions] = i
		w.own = append(w.own, actions)
	}
	return i
}

// read adds the wanted rooms of a record's text. Expected is about their number.
func (r Record) read(text string, wanted func(room string) bool, expected int) error {
	if err := checkForm(text); err != nil {
		return err
	}
	rest, ok := cutChecksum(text)
	if !ok {
		return fmt.Errorf("%w: a record with a wrong checksum", ErrDamaged)
	}
	in := &reader{rest: rest}
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
func (r Record) readRooms(in *reader, actions []string, wanted func(room string) bool, expected int) {
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
	roots := in.threads(r)
	n := in.length(4)
	if n == 0 {
		return
	}
	p := &packed{text: in.rest, n: n, roots: roots, actions: actions}
	if p.byThread = p.main[:]; len(roots) > 0 {
		p.byThread = make([]Counts, 1+len(roots))
	}
	in.unread(p, func(thread int, n Notification) { p.byThread[thread] = p.byThread[thread].with(n) })
	r.packed = p
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
	in.unread(p, func(_ int, n Notification) { r.unread = append(r.unread, n) })
}

// unread calls do for each notification, with the index of its thread in byThread.
func (in *reader) unread(p *packed, do func(thread int, n Notification)) {
	n := Notification{}
	for range p.n {
		before := n
		n.Position += in.number()
		zigzag := in.uvarint()
		n.Time += int64(zigzag>>1) ^ -int64(zigzag&1)
		flags, action := in.uvarint(), in.uvarint()
		if flags>>1 > uint64(len(p.roots)) || action >= uint64(len(p.actions)) || n.Position <= before.Position || n.Time < 0 {
			in.fail()
			return
		}
		n.Thread, n.Highlight, n.Actions = Main, flags&1 == 1, p.actions[action]
		if flags>>1 > 0 {
			n.Thread = p.roots[flags>>1-1]
		}
		do(int(flags>>1), n)
	}
}

func (in *reader) threads(r *Room) []string {
	threads := make([]string, in.length(2))
	for i := range threads {
		threads[i] = in.string()
		if mark := in.number(); mark > 0 {
			r.raise(threads[i], mark)
		}
		if threads[i] == All || threads[i] == Main || i > 0 && threads[i] <= threads[i-1] {
			in.fail()
			return nil
		}
	}
	return threads
}
