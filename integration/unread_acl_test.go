package integration

import (
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/storetest"
	"github.com/pushfx/pushfx/module/unread/redisunread"
)

// unreadACL is the heading above the rights that unread counts add to the service's own.
const unreadACL = "### ACL: more for `pushfx.Unread`"

func TestTheACLOfThePageIsEnoughForUnreadCounts(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedServers) {
		more := aclLineBelow(t, unreadACL)
		for _, prefix := range []string{"", examplePrefix} {
			l := g.line().with(more).withPrefix(prefix)
			g.apply(l)
			g.reset()
			client := g.login(l.user)
			defer client.Close()
			storetest.Unread(t, func(t *testing.T) module.UnreadStore {
				cfg := rediscommit.DefaultConfig()
				cfg.KeyPrefix = prefix
				store, err := redisunread.New(client, cfg, rediscommit.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return store
			})
			if refused := g.denied(l.user); len(refused) > 0 {
				t.Errorf("with the prefix %q: %q", prefix, refused)
			}
		}
		g.wantUsed(more)
	})
}
