package fold

import (
	"fmt"
	"testing"
)

// listOf is a list of a record of rooms with unread notifications, and of operations.
func listOf(t testing.TB, rooms, unread, ops int) []string {
	var all []Op
	for room := range rooms {
		id := fmt.Sprintf("!room%014d:example.org", room)
		all = append(all, read(id, All, 1))
		for i := range int64(unread) {
			all = append(all, notified(id, 1000+i, Main))
		}
	}
	list := []string{fold(t, texts(all...)).Text()}
	for i := range int64(ops) {
		list = append(list, notified("!room00000000000000:example.org", 5000+i, Main).Text())
	}
	return list
}

func BenchmarkFold(b *testing.B) {
	for _, size := range [][2]int{{50, 2}, {500, 0}, {500, 10}} {
		list := listOf(b, size[0], size[1], 8)
		b.Run(fmt.Sprintf("rooms=%d/unread=%d", size[0], size[1]), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fold(b, list)
			}
		})
		b.Run(fmt.Sprintf("3 of rooms=%d/unread=%d", size[0], size[1]), func(b *testing.B) {
			for b.Loop() {
				fold(b, list, "!room00000000000001:example.org", "!room00000000000002:example.org", "!room00000000000003:example.org")
			}
		})
	}
}

func BenchmarkCompact(b *testing.B) {
	for _, size := range [][2]int{{1, 2}, {50, 2}, {500, 0}, {500, 10}} {
		list := listOf(b, size[0], size[1], 17)
		b.Run(fmt.Sprintf("rooms=%d/unread=%d", size[0], size[1]), func(b *testing.B) {
			for b.Loop() {
				fold(b, list).Text()
			}
		})
	}
}
