package fold

import (
	"errors"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

var update = flag.Bool("update", false, "rewrite the golden file")

func goldenOps() []Op {
	return []Op{
		{Kind: Notified, Room: "!room:example.org", Position: 4711, Thread: Main, Time: 1764000000000, Actions: knownActions[0]},
		{Kind: Notified, Room: "!room:example.org", Position: 4712, Thread: "$root", Time: 1764000000500, Highlight: true, Actions: knownActions[3]},
		{Kind: Notified, Room: "!other:example.org", Position: 1, Thread: Main, Time: 0, Actions: tweaks},
		{Kind: Notified, Room: "!invite:example.org", Position: 7, Thread: Main, Time: 1764000000000, Highlight: true, Invite: true, Actions: knownActions[1]},
		{Kind: Notified, Room: "!room:example.org", Position: 3000, Thread: "$root", Time: 1763000000500, Highlight: true, Actions: knownActions[3]},
		{Kind: Read, Room: "!room:example.org", Position: 4000, Thread: All, Time: 1764000001000},
		{Kind: Read, Room: "!room:example.org", Position: 4700, Thread: Main, Time: 1764000001000},
		{Kind: Read, Room: "!room:example.org", Position: 4705, Thread: "$read", Time: 1764000001000},
		{Kind: Redacted, Room: "!room:example.org", Position: 4699, Time: 1764000001000},
	}
}

// The stored bytes are a promise to other hosts and to later versions.
func TestStoredBytes(t *testing.T) {
	list := texts(goldenOps()...)
	var b strings.Builder
	for _, text := range append(list, fold(t, list).Text()) {
		b.WriteString(strconv.Quote(text) + "\n")
	}
	const file = "testdata/stored.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestOpsReadAgain(t *testing.T) {
	for _, op := range goldenOps() {
		if got, err := ReadOp(op.Text()); err != nil || got != op {
			t.Errorf("got %+v, error %v, want %+v", got, err, op)
		}
	}
}

var errOtherForm = errors.New("stands for a fault.OtherVersionError")

func TestBadTexts(t *testing.T) {
	op, record := goldenOps()[0].Text(), fold(t, texts(goldenOps()...)).Text()
	for _, test := range []struct {
		name string
		list []string
		want error
	}{
		{"empty", []string{""}, ErrDamaged},
		{"another program's", []string{"hello"}, ErrDamaged},
		{"the former form of a record", []string{"1" + record[1:], op}, errOtherForm},
		{"a later operation", []string{op, "2" + op[1:]}, errOtherForm},
		{"a later record", []string{"9" + record[1:], op}, errOtherForm},
		{"form 0", []string{"0" + op[1:]}, ErrDamaged},
		{"an unknown kind", []string{"1x" + op[2:]}, ErrDamaged},
		{"a record in the middle", []string{op, record}, ErrDamaged},
		{"an operation that is cut", []string{op[:len(op)-20]}, ErrDamaged},
		{"position 0", []string{strings.Replace(op, "4711", "0", 1)}, ErrDamaged},
		{"a negative position", []string{strings.Replace(op, "4711", "-7", 1)}, ErrDamaged},
		{"a position with a sign", []string{strings.Replace(op, "4711", "+7", 1)}, ErrDamaged},
		{"a notification in all threads", []string{strings.Replace(op, Main, "", 1)}, ErrDamaged},
		{"no room", []string{strings.Replace(op, "!room:example.org", "", 1)}, ErrDamaged},
		{"a record that is cut", []string{record[:len(record)-1]}, ErrDamaged},
		{"a longer record", []string{record + "\x00"}, ErrDamaged},
		{"the head of a record", []string{record[:2]}, ErrDamaged},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Fold(test.list)
			if fault.IsOtherVersion(err) {
				err = errOtherForm
			}
			if !errors.Is(err, test.want) {
				t.Errorf("got error %v, want %v", err, test.want)
			}
		})
	}
	for i := 2; i < len(record); i++ {
		damaged := []byte(record)
		damaged[i] ^= 1 << (i % 8)
		if _, err := Fold([]string{string(damaged)}, "!none"); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d changed: got error %v", i, err)
		}
	}
}

func FuzzOp(f *testing.F) {
	for _, op := range goldenOps() {
		f.Add(op.Text())
	}
	f.Fuzz(func(t *testing.T, text string) {
		op, err := ReadOp(text)
		if err == nil && op.Text() != text {
			t.Errorf("%q became %q", text, op.Text())
		}
	})
}

// FuzzRecord reads records with a right checksum.
func FuzzRecord(f *testing.F) {
	text := fold(f, texts(goldenOps()...)).Text()
	f.Add(text[header+checksum:])
	f.Add("\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
	f.Fuzz(func(t *testing.T, payload string) {
		r, err := Fold([]string{withChecksum(payload)})
		if err != nil {
			return
		}
		again, err := Fold([]string{r.Text()})
		if err != nil || describe(again) != describe(r) {
			t.Errorf("error %v:\n%s\nbecame\n%s", err, describe(r), describe(again))
		}
	})
}
