package sessions

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/rooms"
	"github.com/pushfx/pushfx/module/mxid"
)

func TestAccountDataIsBounded(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	set := func(kind, content string) error {
		return s.SetAccountData(t.Context(), "@alice:x", AccountData{"!r:x", kind, []byte(content)})
	}
	const size, n = 64<<10 - rowBytes, 16 // 1 MB
	most := `"` + strings.Repeat("ä", size/2-1) + `"`
	for i := range n {
		if err := set(fmt.Sprint("type", i), most); err != nil {
			t.Fatal(err)
		}
	}
	for kind, content := range map[string]string{"another": "{}", "type0": most + " "} {
		if err := set(kind, content); !errors.Is(err, ErrTooMuchData) {
			t.Errorf("%s: got %v", kind, err)
		}
	}
	if err := set("type0", "{}"); err != nil {
		t.Errorf("a stored type: %v", err)
	}
	if all, err := s.AccountData(t.Context(), "@alice:x"); err != nil || len(all) != n || all[1].Room != "!r:x" || string(all[0].Content) != "{}" {
		t.Errorf("got %d, %v", len(all), err)
	}
}

func TestIgnoring(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	if err := s.db.Exec(t.Context(), `INSERT INTO rooms (room_id) VALUES ('!r:x')`); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"@alice:x", "@bob:x"} {
		if err := s.db.Exec(t.Context(), `INSERT INTO members VALUES ('!r:x', ?, 'join', 1)`, user); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		user    mxid.UserID
		content string
		want    []mxid.UserID
	}{
		{"@alice:x", `{"ignored_users":{"@eve:x":{},"@mallory:x":{}}}`, []mxid.UserID{"@alice:x"}},
		{"@carol:x", `{"ignored_users":{"@eve:x":{}}}`, []mxid.UserID{"@alice:x"}}, // of another room
		{"@bob:x", `{"ignored_users":{"@eve:x":{}}}`, []mxid.UserID{"@alice:x", "@bob:x"}},
		{"@alice:x", `{"ignored_users":{"@mallory:x":{}}}`, []mxid.UserID{"@bob:x"}},
		{"@bob:x", `{}`, nil},
	} {
		err := s.SetAccountData(t.Context(), test.user, AccountData{Type: IgnoredType, Content: []byte(test.content)})
		if err != nil {
			t.Fatal(err)
		}
		if room, err := rooms.New(s.db).Room(t.Context(), "!r:x", "@eve:x"); err != nil || !slices.Equal(room.Ignoring, test.want) {
			t.Errorf("after %s of %s: got %v, %v, want %v", test.content, test.user, room, err, test.want)
		}
	}
}
