package stored

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func TestDeliveryFormatIsReadBack(t *testing.T) {
	t.Parallel()
	if shards, err := ReadDeliveryFormat(DeliveryFormatText(128)); shards != 128 || err != nil {
		t.Errorf("got %d, %v", shards, err)
	}
	for _, text := range []string{"", "4", "4 ", "4 x", "4 0128", "3 128", "5 128", "128", "4 128 "} {
		if shards, err := ReadDeliveryFormat(text); !fault.IsOtherVersion(err) {
			t.Errorf("%q: got %d, %v", text, shards, err)
		}
	}
}

func TestBacklogEntryIsReadBack(t *testing.T) {
	t.Parallel()
	e := BacklogEntry{Priority: 'l', ID: "0123456789abcdef", Room: "room0000", User: "user0000", Bytes: 417, Added: 1700000000, Meta: `{"u":"@a:b"}`}
	head, ok := e.Head()
	if !ok {
		t.Fatal("the entry cannot be stored")
	}
	text := head + "0004171700000000" + e.Meta
	if got, found := ReadBacklogEntry(text); !found || got != e {
		t.Errorf("got %+v, %t", got, found)
	}
	for _, text := range []string{"", "l", text[:48], "x" + text[1:], head + "00041x1700000000", head + "000417170000000x"} {
		if got, found := ReadBacklogEntry(text); found {
			t.Errorf("%q: got %+v", text, got)
		}
	}
	e.ID = "short"
	if _, ok := e.Head(); ok {
		t.Error("an entry with a short ID can be stored")
	}
}

func TestFirstEntryIsReadBack(t *testing.T) {
	t.Parallel()
	for _, gate := range []string{"", "https://x:443 app", strings.Repeat("x", MaxGate)} {
		text := FirstEntry(gate, "entry")
		if got, entry, found := ReadFirstEntry(text); got != gate || entry != "entry" || !found {
			t.Errorf("%.20s: got %.20s, %s, %t", text, got, entry, found)
		}
	}
	for _, text := range []string{"", "01", "x00", "-10", "004abc"} {
		if gate, entry, found := ReadFirstEntry(text); found {
			t.Errorf("%q: got %q, %q", text, gate, entry)
		}
	}
}

func TestKeysOfOtherVersionsAreRecognized(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"delivery:{000}:log", "delivery:{007}:due", "delivery:{127}:backlog:x", "delivery:{127}:texts:x", "delivery:hosts", "pushkeys:unsettled"} {
		if got := (Keys{}).Parse(name).Kind; got != OtherVersionKey {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
