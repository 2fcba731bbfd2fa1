package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

// trips counts the round trips to each node.
type trips struct {
	mu    sync.Mutex
	count map[string]int // commands and pipelines, by address
}

func (tr *trips) take() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	count := tr.count
	tr.count = map[string]int{}
	return count
}

type nodeTrips struct {
	*trips
	address string
}

func (n nodeTrips) add() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count[n.address]++
}

func (n nodeTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n nodeTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.add()
		return next(ctx, cmd)
	}
}

func (n nodeTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n.add()
		return next(ctx, cmds)
	}
}

func TestManyUsersTakeOneRoundTripToEachNode(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 0)
	tr := &trips{count: map[string]int{}}
	client := cluster.Client(t)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(nodeTrips{tr, node.Options().Addr}) })
	var push module.HostService
	startHost(t, client, fx.Populate(&push), fx.Decorate(func(c pushfx.Config) pushfx.Config { setTimeouts(&c, never); return c }))
	members := make([]mxid.UserID, 300)
	for i := range members {
		members[i] = mxid.UserID(fmt.Sprintf("@member%d:example.org", i))
		if i%3 != 0 { // the others have no rules yet
			if err := push.EnsureDefaults(t.Context(), members[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, read := range map[string]func() error{
		"Rulesets": func() error {
			for user, result := range push.Rulesets(t.Context(), members) {
				want := pushrule.ServerDefault(user)
				if result.Err != nil || string(result.Value.AppendJSON(nil)) != string(want.AppendJSON(nil)) {
					return fmt.Errorf("%s: got %+v", user, result)
				}
			}
			return nil
		},
		"Pushers": func() error {
			if n := len(push.Pushers(t.Context(), members)); n != len(members) {
				return fmt.Errorf("got %d results", n)
			}
			return nil
		},
	} {
		for { // until the client is idle; it checks the health of connections
			tr.take()
			if err := read(); err != nil {
				t.Fatal(err)
			}
			if count := tr.take(); len(count) == 3 && count[cluster.Addrs()[0]] == 1 && sum(count) == 3 {
				break
			} else if sum(count) > 20 {
				t.Fatalf("%s took %v round trips", name, count)
			}
		}
	}
}

func sum(count map[string]int) (n int) {
	for _, m := range count {
		n += m
	}
	return n
}
