package pushrule

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "check what is drawn with this `SEED` only, of which a failed test tells")

// Draws makes values; a seed determines them.
type Draws struct{ *rand.Rand }

func DrawOne[T any](d Draws, from ...T) T { return from[d.IntN(len(from))] }

func DrawList[T any](d Draws, least, most int, draw func() T) []T {
	list := make([]T, least+d.IntN(most-least+1))
	for i := range list {
		list[i] = draw()
	}
	return list
}

const drawings = 100

func CheckDrawn(t *testing.T, check func(d Draws)) {
	t.Helper()
	of := func(seed uint64) {
		defer func() {
			if t.Failed() {
				t.Logf("once more: go test -run '^%s$' -seed %d", t.Name(), seed)
			}
		}()
		check(Draws{rand.New(rand.NewPCG(seed, 0))})
	}
	if *seedFlag != 0 {
		of(*seedFlag)
		return
	}
	n := drawings
	if testing.Short() {
		n /= 10
	}
	for range n {
		of(rand.Uint64())
	}
}
