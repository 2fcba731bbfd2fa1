package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

// TestARestoredServerKnowsItsUsersBeforeAnybodyIsLetIn follows the page: the ACL
// file and the dump are there before the server starts.
func TestARestoredServerKnowsItsUsersBeforeAnybodyIsLetIn(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	start := func(dir string) *redistest.Server {
		return redistest.Single(t, "--requirepass", aclPassword, "--dir", dir, "--aclfile", filepath.Join(dir, "users.acl"))
	}
	before, after := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(before, "users.acl"), []byte("user default on >"+aclPassword+" ~* &* +@all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(before)
	line := aclLines(t, singleACL)[0]
	for _, command := range [][]any{line.args(), {"ACL", "SAVE"}, {"SET", eventKey(alice), "x"}, {"SAVE"}} {
		if err := server.Client(t).Do(t.Context(), command...).Err(); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
	}
	server.Stop()
	for _, file := range []string{"users.acl", "dump.rdb"} {
		text, err := os.ReadFile(filepath.Join(before, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(after, file), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	restored := start(after)
	anybody := redis.NewClient(&redis.Options{Addr: restored.Addr(), MaintNotificationsConfig: noMaintenance()})
	defer anybody.Close()
	if err := anybody.Ping(t.Context()).Err(); !redis.HasErrorPrefix(err, "NOAUTH") {
		t.Errorf("without a login: %v", err)
	}
	service := redis.NewClient(&redis.Options{
		Addr: restored.Addr(), Username: line.user, Password: aclPassword, MaintNotificationsConfig: noMaintenance(),
	})
	defer service.Close()
	if got, err := service.Get(t.Context(), eventKey(alice)).Result(); got != "x" || err != nil {
		t.Errorf("the service gets %q, %v", got, err)
	}
}
