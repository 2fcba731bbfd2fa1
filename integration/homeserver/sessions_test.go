package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestStoredSessionsTellNoSecrets(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	d := startDemo(t, "-redis-mode", "standalone", "-redis", server.Addr(), "-key-prefix", "hs1:", "-log-level", "debug")
	token := d.login("alice", "demo", "PHONE").AccessToken
	if got := d.changePassword(token, "alice", "demo", "new-s3cret", ""); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	d.expect("GET", v3+"/sync?access_token="+token, "", "", 200, "")
	texts := []string{d.stderr.String()}
	for _, more := range []string{"", "-wal"} {
		stored, err := os.ReadFile(hosttest.DataFile(t) + more)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(stored))
	}
	if !strings.Contains(strings.Join(texts[1:], ""), "@alice:localhost") {
		t.Error("the file lacks the user")
	}
	for _, text := range texts {
		for _, secret := range []string{token[strings.LastIndexByte(token, '/')+1:], "new-s3cret"} {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in %q", text)
			}
		}
	}
}
