package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/operations"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

var sizesRow = regexp.MustCompile(`(?m)^\| (.+) \| ([0-9,]+) \|$`)

// The sizes of the operations page are at most a fifth away from typical data's.
func TestSizesOfThePage(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	if strings.Contains(b.client.Info(t.Context(), "server").Val(), "server_name:valkey") {
		t.Skip("the page has sizes of Redis; Valkey needs less")
	}
	const user, some = mxid.UserID("@user00000001:example.org"), 50
	size := func(key string) int64 { return b.client.MemoryUsage(t.Context(), key, 0).Val() }
	if err := b.host.EnsureDefaults(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	measured := map[string]int64{"rules of a default user": size(b.keys.Rules(user))}
	length := b.client.StrLen(t.Context(), b.keys.Rules(user)).Val() // MEMORY USAGE is rounded up
	b.editRules(user, func(rules *pushrule.Ruleset) (err error) {
		for n := range some {
			err = errors.Join(err, rules.Put(pushrule.Room, fmt.Sprintf("!abcdefghijkl%06d:example.org", n), pushrule.Draft{}, pushrule.Position{}))
		}
		return err
	})
	measured["each further `room` rule"] = (b.client.StrLen(t.Context(), b.keys.Rules(user)).Val() - length) / some
	for n := range 1 + some {
		p := pusher.Pusher{
			Key:  pusher.Key{AppID: "im.example.app.android", Pushkey: fmt.Sprintf("%0142d:APA91b", n)}, // as long as FCM's
			Kind: pusher.HTTP, AppDisplayName: "Example Messenger", DeviceDisplayName: "Alice's phone", Lang: "en",
			Data: `{"url":"https://push.example.org/_matrix/push/v1/notify","format":"event_id_only"}`, Device: "ABCDEFGHIJ",
		}
		if err := b.service.Set(t.Context(), user, p, pusher.RemoveOthers); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			measured["first pusher of a user"], measured["each pushkey in the index"] = size(b.keys.Pushers(user)), size(b.keys.Pushkey(p.Digest()))
		}
	}
	measured["each further pusher of a user"] = (size(b.keys.Pushers(user)) - measured["first pusher of a user"]) / some
	checked := 0
	for _, row := range sizesRow.FindAllStringSubmatch(operations.Part(t, "### What one of each takes"), -1) {
		page, err := strconv.ParseInt(strings.ReplaceAll(row[2], ",", ""), 10, 64)
		got, isMeasured := measured[row[1]]
		if err != nil || isMeasured && (page < got*4/5 || page > got*6/5) {
			t.Errorf("%s: the page says %s bytes, measured %d", row[1], row[2], got)
		}
		if isMeasured {
			checked++
		}
	}
	if checked != len(measured) {
		t.Errorf("the page has %d of %d sizes", checked, len(measured))
	}
}
