package pushrule_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func TestACachedSetIsReadLikeANewOne(t *testing.T) {
	t.Parallel()
	sets := oddSets()
	defaults := pushrule.ServerDefault(modelUser)
	sets["defaults"] = encode(&defaults)
	sets["legacy"] = `{"override":[{"rule_id":".m.rule.roomnotif","default":true,"enabled":true,"actions":[],"conditions":[]}],` +
		`"content":[],"room":[],"sender":[],"underride":[]}`
	for _, text := range []string{`null`, `{"room":[null]}`, ``, `{"room":[]`, `{"room":[],"room":[]}`} {
		sets[text] = text
	}
	cache := pushrule.NewReadCache()
	for round := range 3 {
		for name, text := range sets {
			want, wantErr := pushrule.Read(text)
			got, err := cache.Read(text)
			if describe(err) != describe(wantErr) {
				t.Fatalf("round %d: %s: error %v, want %v", round, name, err, wantErr)
			}
			if got != want {
				t.Errorf("round %d: %s: got %+v, want %+v", round, name, got, want)
			}
		}
	}
}

// FuzzReadCache holds what is read with a cache of all texts before against what is read
// without.
func FuzzReadCache(f *testing.F) {
	defaults := pushrule.ServerDefault(modelUser)
	f.Add(encode(&defaults))
	for _, text := range oddSets() {
		f.Add(text)
	}
	const rule = `{"rule_id":"A","default":false,"enabled":true,"actions":[]}`
	for _, list := range []string{rule, rule + "," + rule, rule + ",", rule + rule, "," + rule, rule + ",1", rule[:20], rule + "]", "[" + rule, rule + ` ,` + rule} {
		f.Add(`{"override":[],"content":[],"room":[` + list + `],"sender":[],"underride":[]}`)
		f.Add(`{"override":[` + list + `],"content":[` + list + `],"room":[],"sender":[],"underride":[]}`)
		f.Add(`{"override":[],"content":[],"room":[],"sender":[],"underride":[]}` + list)
	}
	f.Add(" A")
	cache := pushrule.NewReadCache()
	f.Fuzz(func(t *testing.T, text string) {
		want, wantErr := pushrule.Read(text)
		for range 2 {
			got, err := cache.Read(text)
			if describe(err) != describe(wantErr) || got != want {
				t.Errorf("%q: got %+v, %v, want %+v, %v", text, got, err, want, wantErr)
			}
		}
	})
}

func TestASetThatWasAddedIsReadAsItIs(t *testing.T) {
	t.Parallel()
	cache := pushrule.NewReadCache()
	for name, text := range oddSets() {
		set := mustRead(t, text)
		cache.Add(set)
		if got, err := cache.Read(text); err != nil || got != set {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	cache.Add(pushrule.Ruleset{})
	if _, err := cache.Read(""); err == nil {
		t.Error("an empty text is a set")
	}
}

// What pushes another text out of its place must not be taken for it.
func TestMoreSetsThanAreRememberedAreReadRight(t *testing.T) {
	t.Parallel()
	cache := pushrule.NewReadCache()
	text := func(n int) string {
		return fmt.Sprintf(`{"override":[],"content":[],"room":[],"sender":[],"underride":[],"n":%d}`, n)
	}
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for i := range 100_000 {
				n := i * (reader + 1) % 300_000
				if set, err := cache.Read(text(n)); err != nil || set.JSON() != text(n) {
					t.Errorf("%d: %s, %v", n, set.JSON(), err)
				}
				broken := strings.Replace(text(n), "[]", "{}", 1)
				if _, err := cache.Read(broken); err == nil {
					t.Errorf("%s was read", broken)
				}
			}
		})
	}
	readers.Wait()
}

// BenchmarkReadOfAnotherUser reads the defaults of ever other users.
func BenchmarkReadOfAnotherUser(b *testing.B) {
	texts := make([]string, 200_000)
	for i := range texts {
		defaults := pushrule.ServerDefault(mxid.UserID(fmt.Sprintf("@user%d:example.org", i)))
		texts[i] = defaults.JSON()
	}
	cache := pushrule.NewReadCache()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := cache.Read(texts[i%len(texts)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadCache(b *testing.B) {
	for _, size := range []int{10, 100, 1000, 10_000} {
		text := roomSet(b, size)
		cache := pushrule.NewReadCache()
		for name, read := range map[string]func(string) (pushrule.Ruleset, error){"new": pushrule.Read, "cached": cache.Read} {
			b.Run(fmt.Sprintf("%s/rules=%d", name, size), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					if _, err := read(text); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
