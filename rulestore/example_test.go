package rulestore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/rulestore"
)

// A program mutes a room for a user, with or without stored rules.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	store, err := rulestore.New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	const alice mxid.UserID = "@alice:example.org"
	_, err = store.Update(ctx, alice, func(rules *pushrule.Ruleset, found bool) error {
		if !found {
			*rules = pushrule.ServerDefault(alice)
		}
		muted := pushrule.Draft{Actions: []pushrule.Action{}}
		return rules.Put(pushrule.Room, "!lobby:example.org", muted, pushrule.Position{})
	})
	if err != nil {
		log.Fatal(err)
	}
	content, err := store.Load(ctx, alice)
	if err != nil {
		log.Fatal(err)
	}
	for _, rule := range content.Rules.List(pushrule.Room) {
		fmt.Println(rule.ID, rule.Enabled)
	}
	_ = client.Close()
}
