package stored

import (
	"reflect"
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

func TestEarlierDeliveryIsFormFour(t *testing.T) {
	t.Parallel()
	for format, want := range map[string][]string{"4 2": {"hs1:delivery:{000}:first", "hs1:delivery:{001}:first"}, "5 2": nil, "3 2": nil, "": nil} {
		if got := (Keys{"hs1:"}).EarlierDelivery(format); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q", format, got)
		}
	}
}

func TestFieldsOfALogAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]LogHead{
		"1 1 0 0 0 0 ":                    {First: 1, Next: 1},
		"3 9 6 70 2 1 ,gate":              {First: 3, Next: 9, Count: 6, Bytes: 70, States: 2, LastIsCounts: true, Failing: []string{"gate"}},
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
	for field, isPusher := range map[string]bool{LogField: false, IDsField: false, EntryField(1): false, TextField(1): false, "log": true, "-1": true} {
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

func TestKeysOfOtherVersionsAreRecognized(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"delivery:{000}:log", "delivery:{007}:first", "delivery:{127}:more:x", "delivery:{127}:sent:x", "delivery:hosts", "pushkeys:unsettled"} {
		if got := (Keys{}).Parse(name).Kind; got != OtherVersionKey {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
