package sessions

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

func startSessions(t *testing.T) *Sessions {
	t.Helper()
	db, err := data.Open(t.Context(), filepath.Join(t.TempDir(), "demo.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return New(db, "localhost", func(mxid.UserID) {})
}

func TestLoggedIn(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	const user = "@alice:localhost"
	if _, err := s.LogIn(t.Context(), user, DefaultPassword, "PHONE"); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]error{"demo-alice": nil, "demo-alice/TABLET": module.ErrLoggedOut, "session-alice/TABLET/": module.ErrLoggedOut} {
		if _, err := s.Authenticate(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", token, err, want)
		}
	}
	for _, test := range []struct {
		name   string
		device string
		want   bool
	}{
		{"logged in", "PHONE", true},
		{"user", "", true},
		{"default device", "DEMO", true},
		{"not logged in", "TABLET", false},
	} {
		one := module.Session{User: user, Device: test.device}
		got, err := s.LoggedIn(t.Context(), user, test.device)
		if many := s.LoggedInMany(t.Context(), []module.Session{one})[one]; got != test.want || many.Value != got || err != nil || many.Err != nil {
			t.Errorf("%s: got %v, %v, and %v", test.name, got, err, many)
		}
	}
	if err := s.Deactivate(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"PHONE", "DEMO", ""} {
		if got, err := s.LoggedIn(t.Context(), user, device); got || err != nil {
			t.Errorf("%q after the deactivation: got %v, %v", device, got, err)
		}
	}
}

func TestSessionsWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	const user = "@alice:localhost"
	_, loginErr := s.LogIn(t.Context(), user, DefaultPassword, "PHONE")
	_, authErr := s.Authenticate(t.Context(), "session-alice/PHONE/secret")
	_, loggedInErr := s.LoggedIn(t.Context(), user, "PHONE")
	for name, err := range map[string]error{
		"LogIn": loginErr, "Authenticate": authErr, "LoggedIn": loggedInErr,
		"CheckPassword": s.CheckPassword(t.Context(), user, DefaultPassword),
		"SetPassword":   s.SetPassword(t.Context(), user, "x", "PHONE", EndOthers),
		"End":           s.End(t.Context(), user, "PHONE"),
		"EndAll":        s.EndAll(t.Context(), user),
		"Deactivate":    s.Deactivate(t.Context(), user),
	} {
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Logins race with a password change. No session of the old password remains.
func TestLoginsRaceWithAPasswordChange(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	const user = "@alice:localhost"
	tokens := make(chan string)
	for range 8 {
		go func() {
			var last string
			for {
				token, err := s.LogIn(context.Background(), user, DefaultPassword, "PHONE")
				if err != nil {
					tokens <- last
					return
				}
				last = token
			}
		}()
	}
	if err := s.SetPassword(t.Context(), user, "x", "TABLET", EndOthers); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := s.Authenticate(t.Context(), <-tokens); !errors.Is(err, module.ErrLoggedOut) {
			t.Errorf("got %v", err)
		}
	}
}
