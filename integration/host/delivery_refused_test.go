package host

import (
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
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
	hosttest.StartHost(t, server.Client(t), pushfx.Delivery, fx.Decorate(hosttest.AllowLoopback), fx.Populate(&notifier, &pushers))
	gateway := hosttest.NewGateway(t)
	for n, command := range []string{"time", "hmget", "hset", "zadd"} {
		user := mxid.UserID("@" + command + ":example.org") // for whom nothing waits
		if err := pushers.Set(t.Context(), user, hosttest.PusherAt(gateway.URL, command), pusher.KeepOthers); err != nil {
			t.Fatal(err)
		}
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "-"+command).Err(); err != nil {
			t.Fatal(err)
		}
		if err := hosttest.SendEvent(t.Context(), notifier, hosttest.Message(n), user); err == nil {
			t.Errorf("without %s, the event was handed over", command)
		}
		if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "+"+command).Err(); err != nil {
			t.Fatal(err)
		}
		hosttest.Eventually(t, "the event is handed over", func() bool { return hosttest.SendEvent(t.Context(), notifier, hosttest.Message(n), user) == nil })
		gateway.Wait(t, atLeast(n+1))
	}
}
