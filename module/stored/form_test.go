package stored

import (
	"errors"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
)

const laterRevision = `{"form":2,"version":7,"changes":2,"writers":{"W":1}}`

func TestAValueOfAnotherVersionSaysItsForm(t *testing.T) {
	t.Parallel()
	e := Event{Rules: pushrule.ServerDefault(alice), Found: true}
	event := strings.TrimSuffix(e.Text(Revision{}), "}")
	later := event + `,"revision":{"form":2,"version":7,"changes":2,"writers":{"W":1}`
	field, pusher := PusherField(aPusher("a", 1))
	read := map[string]func(string) error{
		"event": func(text string) error { _, err := ReadEvent(text); return err },
		"entry": func(text string) error { _, err := ReadEntry(text); return err },
	}
	for _, c := range []struct{ name, of, text, form string }{
		{"later", "event", event + `,"revision":` + laterRevision + `}`, "2"},
		{"later, with a digest", "event", later + digestOf(later) + `}`, "2"},
		{"later, unreadable", "event", `{"type":"m.push_rules","content":{"global":7},"revision":` + laterRevision + `}`, "2"},
		{"later", "entry", `{"form":3,"last":1,"taken":1,"by":"","users":[],"revision":{"version":7,"changes":2,"writers":{"W":1}}}`, "3"},
		{"later, unreadable", "entry", `{"form":3}`, "3"},
		{"earlier", "entry", `{"taken":1,"holders":{"@alice:example.org":1},"losers":{},"revision":{"version":7,"changes":2,"writers":{"W":1}}}`, "1"},
	} {
		wantOtherForm(t, c.of+", "+c.name, read[c.of](c.text), c.form)
	}
	for form, fields := range map[string]map[string]string{
		"2": {field: pusher, RevisionField: laterRevision},
	} {
		h := ReadHash(fields)
		wantOtherForm(t, "hash", h.Err, form)
		if h.Pushers.Len()+len(h.Unreadable) > 0 {
			t.Errorf("hash of form %s: read %+v", form, h)
		}
	}
}

func wantOtherForm(t *testing.T, name string, err error, form string) {
	t.Helper()
	var other *fault.OtherVersionError
	if !errors.As(err, &other) || other.Form != form || fault.KindOf(err) != fault.Database {
		t.Errorf("%s of form %s: got %v", name, form, err)
	}
}

// Hosts poll the end of an event and the revision of a hash.
func TestALaterRevisionIsNoRevision(t *testing.T) {
	t.Parallel()
	if v := VersionAtEnd(`...},"revision":` + laterRevision + `}`); v != 0 || ReadRevision(laterRevision).Version != 0 {
		t.Errorf("got version %d", v)
	}
}
