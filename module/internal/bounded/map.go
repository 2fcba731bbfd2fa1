// Package bounded has a map that keeps the most recently used entries.
package bounded

// Map is a map with a limit on the total weight of its entries. When its recent
// generation reaches half of the limit, it becomes the older one, and the former older
// one is dropped. Using an entry moves it to the recent generation.
//
// It is not safe for concurrent use. The zero value stores nothing.
type Map[K comparable, V any] struct {
	Limit int // of the total weight

	recent, older map[K]entry[V]
	weight        int // of recent
}

type entry[V any] struct {
	value  V
	weight int
}

// Get returns the value of a key.
func (m *Map[K, V]) Get(key K) (value V, found bool) {
	e, found := m.recent[key]
	if !found {
		if e, found = m.older[key]; found {
			m.Put(key, e.value, e.weight)
		}
	}
	return e.value, found
}

// Put sets the value of a key, or drops it if its weight exceeds half of the limit.
func (m *Map[K, V]) Put(key K, value V, weight int) {
	m.Delete(key)
	if weight > m.Limit/2 {
		return
	}
	if m.recent == nil || m.weight+weight > m.Limit/2 {
		m.recent, m.older, m.weight = map[K]entry[V]{}, m.recent, 0
	}
	m.recent[key] = entry[V]{value, weight}
	m.weight += weight
}

// Delete drops a key.
func (m *Map[K, V]) Delete(key K) {
	m.weight -= m.recent[key].weight
	delete(m.recent, key)
	delete(m.older, key)
}

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.recent) + len(m.older) }
