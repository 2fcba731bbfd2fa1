package sessions

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
)

func startSessions(t *testing.T) *Sessions {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { client.Close() })
	return New(NewStore(client, "", 5*time.Second), "localhost", func(mxid.UserID) {})
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
		if got, err := s.LoggedIn(t.Context(), user, test.device); got != test.want || err != nil {
			t.Errorf("%s: got %v, %v", test.name, got, err)
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

func TestSessionsWithoutRedis(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	if err := s.client.Close(); err != nil {
		t.Fatal(err)
	}
	const user = "@alice:localhost"
	_, loginErr := s.LogIn(t.Context(), user, DefaultPassword, "PHONE")
	_, authErr := s.Authenticate(t.Context(), "session-alice/PHONE/secret")
	_, loggedInErr := s.LoggedIn(t.Context(), user, "PHONE")
	for name, err := range map[string]error{
		"LogIn": loginErr, "Authenticate": authErr, "LoggedIn": loggedInErr,
		"CheckPassword":           s.CheckPassword(t.Context(), user, DefaultPassword),
		"SetPassword":             s.SetPassword(t.Context(), user, "x"),
		"SetPasswordAndEndOthers": s.SetPasswordAndEndOthers(t.Context(), user, "x", "PHONE"),
		"End":                     s.End(t.Context(), user, "PHONE"),
		"EndAll":                  s.EndAll(t.Context(), user),
		"Deactivate":              s.Deactivate(t.Context(), user),
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
	if err := s.SetPasswordAndEndOthers(t.Context(), user, "x", "TABLET"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := s.Authenticate(t.Context(), <-tokens); !errors.Is(err, module.ErrLoggedOut) {
			t.Errorf("got %v", err)
		}
	}
}

// A slot that moves refuses keys that it does not have.
func TestAPasswordChangesWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 2, 0)
	s := New(NewStore(cluster.Client(t), "", 5*time.Second), "localhost", func(mxid.UserID) {})
	const user = "@alice:localhost"
	for _, device := range []string{"PHONE", "TABLET"} {
		if _, err := s.LogIn(t.Context(), user, DefaultPassword, device); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetPassword(t.Context(), user, "old"); err != nil {
		t.Fatal(err)
	}
	slot := redisclient.SlotOf(s.key(devicesHash, user))
	from, err := cluster.MasterOf(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	masters := cluster.Masters()
	if _, err := cluster.BeginMove(t.Context(), slot, masters[1-slices.Index(masters, from)]); err != nil {
		t.Fatal(err)
	}
	if err := s.SetPasswordAndEndOthers(t.Context(), user, "new", "PHONE"); err != nil {
		t.Error(err)
	}
	phone, _ := s.LoggedIn(t.Context(), user, "PHONE")
	tablet, _ := s.LoggedIn(t.Context(), user, "TABLET")
	if err := s.CheckPassword(t.Context(), user, "new"); err != nil || !phone || tablet {
		t.Errorf("phone %v, tablet %v, the new password: %v", phone, tablet, err)
	}
}
