package integration

import (
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// Redis may refuse any command of a script, after it has done those before. Notify then fails, and its repetition must
// not take the event as handed over.
func TestAnEventThatRedisRefusedInPartIsHandedOverAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	admin := server.Client(t)
	var notifier module.Notifier
	var pushers module.PusherService
	startHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(allowLoopback), fx.Populate(&notifier, &pushers))
	gateway := newTestGateway(t)
	for n, command := range []string{"time", "hmget", "hset", "zadd"} {
		user := mxid.UserID("@" + command + ":example.org") // for whom nothing waits
		if err := pushers.Set(t.Context(), user, pusherAt(gateway.url, command), pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "-"+command).Err(); err != nil {
			t.Fatal(err)
		}
		if err := sendEvent(t.Context(), notifier, message(n), user); err == nil {
			t.Errorf("without %s, the event was handed over", command)
		}
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "+"+command).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the event is handed over", func() bool { return sendEvent(t.Context(), notifier, message(n), user) == nil })
		gateway.wait(t, atLeast(n+1))
	}
}
