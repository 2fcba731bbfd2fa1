package delivery

// deque is a queue with two ends.
type deque[T any] struct {
	ring  []T
	first int
	count int
}

func (d *deque[T]) at(i int) *T { return &d.ring[(d.first+i)%len(d.ring)] }

func (d *deque[T]) grow() {
	if d.count < len(d.ring) {
		return
	}
	ring := make([]T, max(8, 2*len(d.ring)))
	for i := range d.count {
		ring[i] = *d.at(i)
	}
	d.ring, d.first = ring, 0
}

func (d *deque[T]) pushBack(item T) {
	d.grow()
	d.count++
	*d.at(d.count - 1) = item
}

// pop takes one out of the middle.
func (d *deque[T]) pop(i int) (item T) {
	item = *d.at(i)
	for ; i+1 < d.count; i++ {
		*d.at(i) = *d.at(i + 1)
	}
	d.popBack()
	return item
}

func (d *deque[T]) popFront() (item T) {
	var none T
	item, *d.at(0) = *d.at(0), none
	d.first, d.count = (d.first+1)%len(d.ring), d.count-1
	return item
}

func (d *deque[T]) popBack() (item T) {
	var none T
	item, *d.at(d.count - 1) = *d.at(d.count - 1), none
	d.count--
	return item
}
