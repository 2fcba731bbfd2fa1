package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/unread"
	"github.com/pushfx/pushfx/module/unread/redisunread"
)

// unreadACL is the heading above the rights that unread counts add to the service's own.
const unreadACL = "### ACL: more for `pushfx.Unread`"

// useUnread makes every call, with a compaction, also of a list that has changed.
func useUnread(ctx context.Context, client redis.UniversalClient, prefix string) error {
	cfg := rediscommit.DefaultConfig()
	cfg.KeyPrefix, cfg.OperationTimeout = prefix, stepTimeout
	store, err := redisunread.New(client, cfg, rediscommit.Options{})
	if err != nil {
		return err
	}
	var failures []error
	s := unread.New(store, unread.Config{}, nil, nil)
	for i := range int64(100) {
		failures = append(failures, s.Read(ctx, alice, "!room", fmt.Sprint("$", i), i+1))
	}
	stale := store.Replace(ctx, []module.UnreadReplacement{{User: alice, First: []string{"other"}, By: "x"}})[0]
	_, rooms := s.Rooms(ctx, alice)
	badge := s.Counts(ctx, []mxid.UserID{alice})[alice]
	return errors.Join(append(failures, stale.Err, rooms, badge.Err, store.Delete(ctx, alice))...)
}

func TestTheACLOfThePageIsEnoughForUnreadCounts(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedServers) {
		more := aclLineBelow(t, unreadACL)
		for _, prefix := range []string{"", examplePrefix} {
			l := g.line().with(more).withPrefix(prefix)
			g.apply(l)
			g.reset()
			client := g.login(l.user)
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 4*stepTimeout)
			defer cancel()
			if err := useUnread(ctx, client, prefix); err != nil {
				t.Errorf("with the prefix %q: %v", prefix, err)
			}
			if refused := g.denied(l.user); len(refused) > 0 {
				t.Errorf("with the prefix %q: %q", prefix, refused)
			}
		}
		g.wantUsed(more)
	})
}
