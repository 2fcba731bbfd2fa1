package pusher_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/pusher"
)

func show(l *pusher.List) string {
	var keys []string
	for _, p := range l.All() {
		key := p.Pushkey
		if p.Lang != "en" {
			key += ":" + p.Lang
		}
		keys = append(keys, key)
	}
	return strings.Join(keys, " ")
}

func stored(l *pusher.List) pusher.List {
	all := l.All()
	var reversed []pusher.Pusher
	for i := range all {
		reversed = append(reversed, all[len(all)-1-i])
	}
	return pusher.NewList(reversed...)
}

func in(lang string, p pusher.Pusher) pusher.Pusher {
	p.Lang = lang
	return p
}

func TestListIsInOrderOfCreation(t *testing.T) {
	set := func(p pusher.Pusher) func(*pusher.List) { return func(l *pusher.List) { l.Set(p) } }
	remove := func(key string) func(*pusher.List) {
		return func(l *pusher.List) {
			if !l.Delete(phone(key).Key) {
				panic("nothing to delete: " + key)
			}
		}
	}
	otherApp := phone("b")
	otherApp.AppID = "another.app"
	for name, test := range map[string]struct {
		edits []func(*pusher.List)
		want  string
	}{
		"empty":                    {nil, ""},
		"one":                      {[]func(*pusher.List){set(phone("b"))}, "b"},
		"several":                  {[]func(*pusher.List){set(phone("b")), set(phone("c")), set(phone("a"))}, "b c a"},
		"an update in place":       {[]func(*pusher.List){set(phone("b")), set(phone("c")), set(phone("a")), set(in("fr", phone("c")))}, "b c:fr a"},
		"an update of the first":   {[]func(*pusher.List){set(phone("b")), set(phone("a")), set(in("fr", phone("b"))), set(phone("c"))}, "b:fr a c"},
		"a deletion":               {[]func(*pusher.List){set(phone("b")), set(phone("c")), set(phone("a")), remove("c")}, "b a"},
		"the first, created again": {[]func(*pusher.List){set(phone("b")), set(phone("a")), remove("b"), set(phone("b"))}, "a b"},
		"the last, created again":  {[]func(*pusher.List){set(phone("b")), set(phone("a")), remove("a"), set(phone("a"))}, "b a"},
		"all deleted":              {[]func(*pusher.List){set(phone("b")), remove("b"), set(phone("a"))}, "a"},
		"one key, another app":     {[]func(*pusher.List){set(phone("b")), set(in("de", otherApp)), set(in("fr", phone("b")))}, "b:fr b:de"},
	} {
		t.Run(name, func(t *testing.T) {
			var l pusher.List
			for _, edit := range test.edits {
				edit(&l)
			}
			again := stored(&l)
			if show(&l) != test.want || show(&again) != test.want {
				t.Errorf("got %q, read back %q, want %q", show(&l), show(&again), test.want)
			}
			if l.Len() != len(strings.Fields(test.want)) {
				t.Errorf("has %d pushers", l.Len())
			}
		})
	}
}

func TestSetIgnoresTheGivenCreated(t *testing.T) {
	var l pusher.List
	late := phone("a")
	late.Created = 1000
	l.Set(late)
	l.Set(phone("b"))
	late.Created = 2000
	l.Set(late)
	if all := l.All(); all[0].Created != 1 || all[1].Created != 2 {
		t.Errorf("got %d and %d", all[0].Created, all[1].Created)
	}
}

func TestSetAfterTheLastPossiblePlaceKeepsTheOrder(t *testing.T) {
	last := phone("a")
	last.Created = math.MaxInt64
	l := pusher.NewList(last)
	l.Set(phone("b"))
	again := stored(&l)
	if show(&l) != "a b" || show(&again) != "a b" {
		t.Errorf("got %q, read back %q", show(&l), show(&again))
	}
}

func TestPushersInTheSamePlaceHaveAFixedOrder(t *testing.T) {
	a, b, c := phone("k"), phone("k"), phone("j")
	a.AppID, b.AppID, c.AppID = "a", "b", "b"
	first, second := pusher.NewList(a, b, c), pusher.NewList(c, b, a)
	if show(&first) != show(&second) || show(&first) != "k j k" || first.All()[0].AppID != "a" {
		t.Errorf("got %q and %q", show(&first), show(&second))
	}
}

func TestKnownBytesFollowChanges(t *testing.T) {
	for name, list := range map[string]pusher.List{"from an empty list": {}, "from a stored list": knownBytes(pusher.NewList(in("de", phone("a"))))} {
		for i := range 40 {
			if key := strconv.Itoa(i * i % 7); i%3 == 0 {
				list.Delete(phone(key).Key)
			} else {
				list.Set(in(strings.Repeat("\n", i), phone(key)))
			}
			if whole := pusher.NewList(list.All()...); list.Size() != whole.Size() {
				t.Fatalf("%s, change %d: got %+v, want %+v", name, i, list.Size(), whole.Size())
			}
		}
	}
}

func knownBytes(list pusher.List) pusher.List { return list.WithBytes(list.Size().Bytes) }

func TestDeleteReportsWhetherThereWasAPusher(t *testing.T) {
	l := pusher.NewList(phone("a"))
	for _, key := range []pusher.Key{{}, {AppID: "org.example.app"}, {AppID: "org.example.app", Pushkey: "A"}, {AppID: "a", Pushkey: "a"}} {
		if l.Delete(key) || l.Len() != 1 {
			t.Errorf("%+v was deleted", key)
		}
	}
	if !l.Delete(phone("a").Key) || l.Delete(phone("a").Key) || l.Len() != 0 {
		t.Error("a pusher is not deleted exactly once")
	}
}

func TestCopiesOfAListAreIndependent(t *testing.T) {
	edits := map[string]func(*pusher.List){
		"set a new key": func(l *pusher.List) { l.Set(phone("new")) },
		"update":        func(l *pusher.List) { l.Set(in("fr", phone("a"))) },
		"delete":        func(l *pusher.List) { l.Delete(phone("a").Key) },
		"delete, set":   func(l *pusher.List) { l.Delete(phone("c").Key); l.Set(phone("d")) },
	}
	for first, edit := range edits {
		for second, another := range edits {
			t.Run(first+", then "+second, func(t *testing.T) {
				var original pusher.List
				for _, key := range []string{"a", "b", "c"} {
					original.Set(phone(key))
				}
				copied := original
				edit(&copied)
				want := show(&copied)
				again := copied
				another(&again)
				if show(&original) != "a b c" || show(&copied) != want {
					t.Errorf("got %q and %q, want %q and %q", show(&original), show(&copied), "a b c", want)
				}
			})
		}
	}
}

func TestListSharesNoSlices(t *testing.T) {
	given := []pusher.Pusher{phone("a"), phone("b")}
	l := pusher.NewList(given...)
	given[0] = phone("x")
	if l.Set(phone("c")); show(&l) != "a b c" {
		t.Errorf("got %q", show(&l))
	}
	l.Delete(phone("c").Key) // leaves spare capacity
	x, y := append(l.All(), phone("x")), append(l.All(), phone("y"))
	if x[2].Pushkey != "x" || y[2].Pushkey != "y" || show(&l) != "a b" {
		t.Errorf("two slices share memory: %q and %q", x[2].Pushkey, y[2].Pushkey)
	}
}

func TestListIsShownAsAnArray(t *testing.T) {
	var l pusher.List
	if got := string(l.AppendJSON([]byte("x"))); got != "x[]" {
		t.Errorf("an empty list: got %s", got)
	}
	l.Set(phone("a"))
	l.Set(phone("b"))
	want := fmt.Sprintf("[%s,%s]", phone("a").AppendJSON(nil), phone("b").AppendJSON(nil))
	if got := string(l.AppendJSON(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFieldIsAnArrayOfAppIDAndPushkey(t *testing.T) {
	for key, want := range map[pusher.Key]string{
		{AppID: "app", Pushkey: "key"}:         `["app","key"]`,
		{}:                                     `["",""]`,
		{AppID: `a","b`, Pushkey: "c"}:         `["a\",\"b","c"]`,
		{AppID: "<\u2028>", Pushkey: "\n\x00"}: "[\"<\u2028>\",\"\\n\\u0000\"]",
	} {
		if got := key.Field(); got != want {
			t.Errorf("%+v: got %s, want %s", key, got, want)
		}
	}
}

func FuzzField(f *testing.F) {
	f.Add("app", "key")
	f.Add(`a","b`, "c")
	f.Add("a", `b","c`)
	f.Add("\\", "\"")
	f.Fuzz(func(t *testing.T, app, key string) {
		if !utf8.ValidString(app) || !utf8.ValidString(key) {
			t.Skip("cannot be submitted")
		}
		field := pusher.Key{AppID: app, Pushkey: key}.Field()
		var parts []string // the field is unique if it can be decoded
		if err := json.Unmarshal([]byte(field), &parts); err != nil || len(parts) != 2 || parts[0] != app || parts[1] != key {
			t.Errorf("%q, %q: %s is read as %q, %v", app, key, field, parts, err)
		}
	})
}
