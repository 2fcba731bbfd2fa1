package match

import (
	"errors"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/pushfx/pushfx/module/strictjson"
)

// Event is a parsed event. It never changes and is safe for concurrent use.
type Event struct {
	properties []property
	elements   []value // scalars of all arrays, one array after the other; long arrays are sorted
	slots      [slotCount]int32

	bodyOnce sync.Once
	prepared body // see [Event.body]

	byNameOnce sync.Once
	byName     map[member]int32 // index in properties; see [Event.findByName]
}

type member struct {
	parent int32
	name   string
}

type property struct {
	name   string
	parent int32 // index of the parent object in properties, -1 for the event
	value  value // for an array, value.number is the range of its scalars in elements
}

const (
	absent         = -1
	manyProperties = 24
	manyElements   = 16
)

// ErrNotAnEvent refuses an invalid event.
var ErrNotAnEvent = errors.New("match: not a JSON object")

// ReadEvent parses an event, which can then be evaluated any number of times. The event
// is in the format for clients (Matrix specification, "Room event format") with
// room_id, sender and, for state events, state_key. ReadEvent returns [ErrNotAnEvent]
// unless the text is one JSON object in valid UTF-8, with unique names and whole
// surrogate pairs. The event keeps the text in memory.
func ReadEvent(text string) (*Event, error) {
	if !strictjson.Valid(text) {
		return nil, ErrNotAnEvent
	}
	w := strictjson.Walk(text)
	if w.Next() != '{' {
		return nil, ErrNotAnEvent
	}
	e := &Event{properties: make([]property, 0, 8+len(text)/48)}
	for i := range e.slots {
		e.slots[i] = absent
	}
	e.readObject(&w, absent, slotEvent)
	return e, nil
}

func (e *Event) readObject(w *strictjson.Walker, parent int32, parentSlot slot) {
	for name := range w.Object() {
		at, s := int32(len(e.properties)), slotOf(parentSlot, name)
		e.properties = append(e.properties, property{name: name, parent: parent})
		if s != 0 {
			e.slots[s] = at
		}
		switch w.Next() {
		case '{':
			e.readObject(w, at, s)
		case '[':
			e.properties[at].value = e.readArray(w)
		default:
			e.properties[at].value = readScalar(w)
		}
	}
}

func (e *Event) readArray(w *strictjson.Walker) value {
	first := len(e.elements)
	for range w.Array() {
		if c := w.Next(); c == '{' || c == '[' {
			continue
		}
		if v := readScalar(w); v.isScalar() {
			e.elements = append(e.elements, v)
		}
	}
	if len(e.elements)-first > manyElements {
		slices.SortFunc(e.elements[first:], value.compare)
	}
	return value{kind: array, number: int64(first)<<32 | int64(len(e.elements))}
}

// body returns content.body, or nil if it is not a string. The first call prepares it.
func (e *Event) body() *body {
	p := e.slot(slotBody)
	if p == nil || p.value.kind != textual {
		return nil
	}
	e.bodyOnce.Do(func() { e.prepared = readBody(p.value.text) })
	return &e.prepared
}

func (e *Event) hasPath(at int32, parts []string) bool {
	for i := len(parts) - 1; i >= 0; i-- {
		if at == absent || e.properties[at].name != parts[i] {
			return false
		}
		at = e.properties[at].parent
	}
	return at == absent
}

func (e *Event) slot(s slot) *property {
	if at := e.slots[s]; at >= 0 {
		return &e.properties[at]
	}
	return nil
}

func (e *Event) find(k *key) *property {
	if k.slot != 0 {
		return e.slot(k.slot)
	}
	if len(e.properties) > manyProperties {
		return e.findByName(k)
	}
	name := k.parts[len(k.parts)-1]
	for i := range e.properties {
		if e.properties[i].name == name && e.hasPath(int32(i), k.parts) {
			return &e.properties[i]
		}
	}
	return nil
}

func (e *Event) findByName(k *key) *property {
	e.byNameOnce.Do(func() {
		e.byName = make(map[member]int32, len(e.properties))
		for i := range e.properties {
			e.byName[member{e.properties[i].parent, e.properties[i].name}] = int32(i)
		}
	})
	at := int32(absent)
	for _, name := range k.parts {
		inside, found := e.byName[member{at, name}]
		if !found {
			return nil
		}
		at = inside
	}
	return &e.properties[at]
}

func (e *Event) text(k *key) (text string, found bool) {
	p := e.find(k)
	if p == nil || p.value.kind != textual {
		return "", false
	}
	return p.value.text, true
}

func (e *Event) elementsOf(p *property) []value {
	if p.value.kind != array {
		return nil
	}
	return e.elements[p.value.number>>32 : p.value.number&math.MaxInt32]
}

func (e *Event) contains(p *property, element value) bool {
	elements := e.elementsOf(p)
	if len(elements) > manyElements {
		_, found := slices.BinarySearchFunc(elements, element, value.compare)
		return found
	}
	return slices.Contains(elements, element)
}

func (e *Event) membersOf(object *property) iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
		for i := range e.properties {
			p := &e.properties[i]
			if p.parent >= 0 && &e.properties[p.parent] == object && !yield(p.name, p.value) {
				return
			}
		}
	}
}
