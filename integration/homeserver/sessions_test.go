package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/redistest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

func TestWhoIsLoggedIn(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	const user = "@alice:localhost"
	if _, err := s.logIn(t.Context(), user, defaultPassword, "PHONE"); err != nil {
		t.Fatal(err)
	}
	session := withCaller(t.Context(), caller{handlers.Requester{User: user, Device: "TABLET"}, "secret"})
	stateless := withCaller(t.Context(), caller{handlers.Requester{User: user, Device: "TABLET"}, ""})
	other := withCaller(t.Context(), caller{handlers.Requester{User: "@bob:localhost", Device: "TABLET"}, ""})
	for _, test := range []struct {
		name   string
		ctx    context.Context
		device string
		want   bool
	}{
		{"logged in", t.Context(), "PHONE", true},
		{"user", t.Context(), "", true},
		{"not logged in", t.Context(), "TABLET", false},
		{"not logged in any more", session, "TABLET", false},
		{"device without a session", stateless, "TABLET", true},
		{"another device", stateless, "WATCH", false},
		{"somebody else's", other, "TABLET", false},
	} {
		if got, err := s.LoggedIn(test.ctx, user, test.device); got != test.want || err != nil {
			t.Errorf("%s: got %v, %v", test.name, got, err)
		}
	}
	if err := s.deactivate(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"PHONE", "TABLET", ""} {
		if got, err := s.LoggedIn(stateless, user, device); got || err != nil {
			t.Errorf("%q after the deactivation: got %v, %v", device, got, err)
		}
	}
}

func TestStoredSessionsTellNoSecrets(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr(), "-key-prefix", "hs1:", "-log-level", "debug")
	token := d.login("alice", "demo", "PHONE").AccessToken
	if got := d.changePassword(token, "alice", "demo", "new-s3cret", ""); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.expect("POST", v3+"/user/@alice:localhost/filter", token, "{}", 200, "")
	d.expect("GET", v3+"/sync?access_token="+token, "", "", 200, "")
	texts := []string{d.stderr.String()}
	for _, name := range []string{"account", "devices", "filters"} {
		fields, err := server.Client(t).HGetAll(t.Context(), "hs1:demo:"+name+":{@alice:localhost}").Result()
		if err != nil || len(fields) == 0 {
			t.Errorf("%s: got %v, %v", name, fields, err)
		}
		texts = append(texts, fmt.Sprint(fields))
	}
	for _, text := range texts {
		for _, secret := range []string{token[strings.LastIndexByte(token, '/')+1:], "new-s3cret"} {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in %s", text)
			}
		}
	}
}

func TestSessionsWithoutRedis(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	if err := s.redis.Close(); err != nil {
		t.Fatal(err)
	}
	const user = "@alice:localhost"
	_, loginErr := s.logIn(t.Context(), user, defaultPassword, "PHONE")
	_, authErr := s.authenticate(t.Context(), "session-alice/PHONE/secret")
	_, loggedInErr := s.LoggedIn(t.Context(), user, "PHONE")
	for name, err := range map[string]error{
		"logIn": loginErr, "authenticate": authErr, "LoggedIn": loggedInErr,
		"checkPassword":           s.checkPassword(t.Context(), user, defaultPassword),
		"setPassword":             s.setPassword(t.Context(), user, "x"),
		"setPasswordAndEndOthers": s.setPasswordAndEndOthers(t.Context(), user, "x", "PHONE"),
		"end":                     s.end(t.Context(), user, "PHONE"),
		"endAll":                  s.endAll(t.Context(), user),
		"deactivate":              s.deactivate(t.Context(), user),
	} {
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestLoginsThatRaceWithAPasswordChange leave no session that began with the
// old password.
func TestLoginsThatRaceWithAPasswordChange(t *testing.T) {
	t.Parallel()
	s := startSessions(t)
	const user = "@alice:localhost"
	tokens := make(chan string)
	for range 8 {
		go func() {
			var last string
			for {
				token, err := s.logIn(context.Background(), user, defaultPassword, "PHONE")
				if err != nil {
					tokens <- last
					return
				}
				last = token
			}
		}()
	}
	if err := s.setPasswordAndEndOthers(t.Context(), user, "x", "TABLET"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := s.authenticate(t.Context(), <-tokens); !errors.Is(err, module.ErrLoggedOut) {
			t.Errorf("got %v", err)
		}
	}
}
