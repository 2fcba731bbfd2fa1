package host

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestManyUsersTakeOneRoundTripToEachNode(t *testing.T) {
	t.Parallel()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 0)
	client := cluster.Client(t)
	var trips sync.Map // by address
	client.OnNewNode(func(node *redis.Client) { trips.Store(node.Options().Addr, redistest.RecordTrips(node)) })
	take := func() (counts []int) {
		for _, of := range trips.Range {
			if n := len(of.(*redistest.Trips).Take()); n > 0 {
				counts = append(counts, n)
			}
		}
		return counts
	}
	var push module.HostService
	hosttest.StartHost(t, client, fx.Populate(&push), fx.Decorate(func(c pushfx.Config) pushfx.Config { hosttest.SetTimeouts(&c, hosttest.Never); return c }))
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
				if result.Err != nil || !result.Value.Rules.Equal(want) {
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
			take()
			if err := read(); err != nil {
				t.Fatal(err)
			}
			if counts := take(); slices.Equal(counts, []int{1, 1, 1}) {
				break
			} else if len(counts) == 0 || slices.Max(counts) > 10 {
				t.Fatalf("%s took %v round trips", name, counts)
			}
		}
	}
}
