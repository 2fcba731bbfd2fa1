package stored

import (
	"reflect"
	"slices"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func TestDeliveryFormatIsReadBack(t *testing.T) {
	t.Parallel()
	if shards, err := ReadDeliveryFormat(DeliveryFormatText(16)); shards != 16 || err != nil {
		t.Errorf("got %d, %v", shards, err)
	}
	for _, text := range []string{"", "5", "5 ", "5 x", "5 016", "4 128", "6 16", "16", "5 16 "} {
		if shards, err := ReadDeliveryFormat(text); !fault.IsOtherVersion(err) {
			t.Errorf("%q: got %d, %v", text, shards, err)
		}
	}
}

func TestFieldsOfALogAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]LogHead{
		"1 1 0 0 0 0 ":                    {Cuts: 1, Next: 1},
		"3 9 6 70 2 1 ,gate":              {Cuts: 3, Next: 9, Count: 6, Bytes: 70, States: 2, LastIsCounts: true, Failing: []string{"gate"}},
		"":                                {},
		"1 1 0 0 0 2 ":                    {},
		"99999999999999999999 1 0 0 0 0 ": {},
	} {
		if got, found := ReadLogHead(text); !reflect.DeepEqual(got, want) || found != (want.Next > 0) {
			t.Errorf("head %q: got %+v, %t", text, got, found)
		}
	}
	for text, want := range map[string]LogEntry{
		"lidididi1roomroom1700000000000 {\"a\": 1}": {'l', "idididi1", "roomroom", 1700000000000, `{"a": 1}`},
		"cidididi1roomroom17 ":                      {'c', "idididi1", "roomroom", 17, ""},
		"xidididi1roomroom17 ":                      {},
		"lidididi1roomroom17":                       {},
		"lidid":                                     {},
	} {
		if got, found := ReadLogEntry(text); found != (want.ID != "") || found && got != want {
			t.Errorf("entry %q: got %+v, %t", text, got, found)
		}
	}
	for text, want := range map[string]PusherState{
		"1700 - 3 gatedige 0 ":           {1700, "-", 3, "gatedige", 0, ""},
		"1700 NONCE 3 gatedige 5 a b\nc": {1700, "NONCE", 3, "gatedige", 5, "a b\nc"},
		"1700 NONCE 3 gatedige 5":        {},
		"x NONCE 3 gatedige 5 ":          {},
	} {
		if got, found := ReadPusherState(text); found != (want.Until > 0) || found && got != want {
			t.Errorf("state %q: got %+v, %t", text, got, found)
		}
	}
	if head, ok := (LogEntry{Priority: 'h', ID: "12345678", Room: "roomroom"}).Head(); head != "h12345678roomroom" || !ok {
		t.Errorf("got %q, %t", head, ok)
	}
	if _, ok := (LogEntry{Priority: 'h', ID: "short", Room: "roomroom"}).Head(); ok {
		t.Error("an entry with a short ID can be stored")
	}
	for field, isPusher := range map[string]bool{LogField: false, IDsField: false, EntryField(1): false, TextField(1): false, KeptField("p"): false, "log": true, "-1": true} {
		if IsPusherField(field) != isPusher {
			t.Errorf("%s is of a pusher: %t", field, !isPusher)
		}
	}
	if n, found := ReadEntryField(EntryField(12)); n != 12 || !found {
		t.Errorf("got %d, %t", n, found)
	}
	if generation, text := ReadTroubleText(TroubleText(3, "a b")); generation != 3 || text != "a b" {
		t.Errorf("got %d, %q", generation, text)
	}
}

func TestWhatAPusherKeepsIsReadBack(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		kept           Kept
		at, next       int64
		all, firstFour []int64
	}{
		"":                {Kept{}, 7, 10, []int64{7, 8, 9}, []int64{7, 8, 9}}, // a pusher that was not cut
		"20":              {Kept{Place: 20}, 7, 22, []int64{20, 21}, []int64{20, 21}},
		"20 13 12 3":      {Kept{20, []int64{7, 8, 17}}, 7, 22, []int64{7, 8, 17, 20, 21}, []int64{7, 8, 17, 20}},
		"20 13 12 3 1":    {Kept{20, []int64{7, 8, 17, 19}}, 8, 30, []int64{8, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}, []int64{8, 17, 19, 20}},
		"20 13 12 11 4 2": {Kept{20, []int64{7, 8, 9, 16, 18}}, 22, 24, []int64{22, 23}, []int64{22, 23}},
	} {
		got, found := ReadKept(text)
		if found != (text != "") || !reflect.DeepEqual(got, want.kept) || found && got.Text() != text {
			t.Errorf("%q: got %+v, %t, stored as %q", text, got, found, got.Text())
		}
		if all, four := got.From(want.at, want.next, 100), got.From(want.at, want.next, 4); !reflect.DeepEqual(all, want.all) || !reflect.DeepEqual(four, want.firstFour) {
			t.Errorf("%q: at %d: got %v, %v", text, want.at, all, four)
		}
		if n := got.Count(want.at, want.next); n != len(want.all) {
			t.Errorf("%q: at %d: counts %d", text, want.at, n)
		}
		for n := range want.next {
			if got.Has(want.at, n) != slices.Contains(want.all, n) {
				t.Errorf("%q: at %d: has %d: %t", text, want.at, n, got.Has(want.at, n))
			}
		}
	}
	for _, text := range []string{"20 x", "20  3", " 20", "x"} {
		if got, found := ReadKept(text); found {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func TestKeysOfOtherVersionsAreRecognized(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"delivery:{000}:log", "delivery:{007}:first", "delivery:{127}:more:x", "delivery:{127}:sent:x", "pushkeys:unsettled"} {
		if got := (Keys{}).Parse(name).Kind; got != OtherVersionKey {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
