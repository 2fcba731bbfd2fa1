package pusherstore

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
)

// Concurrent changes count up pushers of one hash, and some replies are lost.
func TestConcurrentChangesOfPushersTakeEffectOnce(t *testing.T) {
	t.Parallel()
	const pushers, changes = 8, 100
	store, server, _ := newStore(t)
	for n := range pushers {
		p := aPusher(fmt.Sprint(n))
		p.Lang = "0"
		if err := store.Update(t.Context(), alice, func(list *pusher.List) error { list.Set(p); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var lost []int
	for n := range changes {
		lost = append(lost, 5*(n+1))
	}
	lossy, _ := newLossyStore(t, server, lost...)
	var made, unknown [pushers]int
	var changing sync.WaitGroup
	for n := range pushers {
		key := aPusher(fmt.Sprint(n)).Key
		changing.Go(func() {
			for range changes {
				err := lossy.UpdatePusher(t.Context(), alice, key, func(list *pusher.List) error {
					p, _ := list.Pusher(key)
					count, err := strconv.Atoi(p.Lang)
					p.Lang = strconv.Itoa(count + 1)
					list.Set(p)
					return err
				})
				switch {
				case err == nil:
					made[n]++
				case fault.KindOf(err) == fault.Unavailable:
					unknown[n]++
				default:
					t.Error(err)
				}
			}
		})
	}
	changing.Wait()
	list, err := store.Load(t.Context(), alice)
	if err != nil {
		t.Fatal(err)
	}
	for n := range pushers {
		p, _ := list.Pusher(aPusher(fmt.Sprint(n)).Key)
		count, err := strconv.Atoi(p.Lang)
		if err != nil || count < made[n] || count > made[n]+unknown[n] {
			t.Errorf("pusher %d was changed %d times and perhaps %d times more, but counts %q", n, made[n], unknown[n], p.Lang)
		}
	}
}
