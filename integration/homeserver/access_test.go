package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/redistest"
)

func grantLines(t *testing.T, client *redis.Client, headings ...string) {
	t.Helper()
	for _, heading := range headings {
		part, err := operations.Section(heading)
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(part, "\nACL ")
		line, _, _ = strings.Cut(line, "\n")
		args := []any{"ACL"}
		for _, word := range strings.Fields(strings.ReplaceAll(line, "PASSWORD", "hush")) {
			args = append(args, word)
		}
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", heading, err)
		}
	}
}

func TestTheACLOfThePageIsEnoughForTheDemoHost(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	admin := server.Client(t)
	grantLines(t, admin, "### ACL: a single server, or servers behind sentinels",
		"### ACL: more for `pushfx.Delivery`", "### ACL: more for `pushfx.Unread`")
	d := startDemo(t, "-redis-mode", "standalone", "-redis", "redis://pushfx:hush@"+server.Addr())
	token, other := d.login("alice", "demo", "PHONE").AccessToken, d.login("alice", "demo", "").AccessToken
	d.useAsNewUser(token)
	d.setPusherHere(token, "phone", "")
	d.expect("POST", sendPath, "demo-bob", `{"event_id":"$one","room_id":"!r:localhost","members":["@alice:localhost"],`+
		`"type":"m.room.message","content":{"body":"Hello"}}`, 200, "")
	poll(t, "the notification is printed", func() bool { return strings.Contains(d.stdout.String(), "event $one") })
	d.expect("GET", "/_demo/pushers", token, "", 200, "")
	d.expect("POST", v3+"/rooms/!r:localhost/receipt/m.read/$one", token, "{}", 200, "{}")
	d.expect("GET", v3+"/notifications", token, "", 200, "")
	d.expect("POST", v3+"/logout", other, "", 200, "")
	if got := d.changePassword(token, "alice", "demo", "s3cret", ""); got.status != 200 {
		t.Errorf("password: got %d %s", got.status, got.body)
	}
	d.expect("POST", v3+"/logout/all", token, "", 200, "")
	token = d.login("alice", "s3cret", "").AccessToken
	d.expect("POST", v3+"/account/deactivate", token, `{"auth":`+auth("alice", "s3cret")+`}`, 200, "")
	denied, err := admin.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range denied {
		if what := fmt.Sprint(entry.Reason, " ", entry.Object); what != "command client|setinfo" && what != "command config|get" {
			t.Errorf("denied: %s", what)
		}
	}
}
