package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/pushrule"
)

const writers = 50

func atOnce(do func(writer int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for writer := range writers {
		group.Go(func() {
			<-start
			do(writer)
		})
	}
	close(start)
	group.Wait()
}

func TestNoRuleOfManyWritersOnTwoHostsIsLost(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		hosts := []*host{startHost(t, newClient(t)), startHost(t, newClient(t))}
		hosts[0].do(alice, http.MethodGet, v3+"/pushrules/", "")
		atOnce(func(writer int) {
			path := fmt.Sprintf("%s/pushrules/global/room/writer-%02d", v3, writer)
			if a := hosts[writer%2].do(alice, http.MethodPut, path, `{"actions":[]}`); a.status != http.StatusOK {
				t.Errorf("writer %d: %d %s", writer, a.status, a.body)
			}
		})
		all := hosts[0].do(alice, http.MethodGet, v3+"/pushrules/global/", "")
		rules, err := pushrule.Read(all.body)
		if err != nil {
			t.Fatal(err)
		}
		got := len(rules.List(pushrule.Room))
		if got != writers {
			t.Errorf("got %d rules, want %d", got, writers)
		}
		t.Logf("%d of %d simultaneous changes are kept", got, writers)
	})
}

func TestManyDeletesOfOneRuleSucceedOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		hosts := []*host{startHost(t, newClient(t)), startHost(t, newClient(t))}
		hosts[0].do(alice, http.MethodGet, v3+"/pushrules/", "")
		hosts[0].do(alice, http.MethodPut, v3+"/pushrules/global/room/x", `{"actions":[]}`)
		statuses := make([]int, writers)
		atOnce(func(writer int) {
			statuses[writer] = hosts[writer%2].do(alice, http.MethodDelete, v3+"/pushrules/global/room/x", "").status
		})
		count := map[int]int{}
		for _, status := range statuses {
			count[status]++
		}
		if count[http.StatusOK] != 1 || count[http.StatusNotFound] != writers-1 {
			t.Errorf("got statuses %v", count)
		}
	})
}

func TestNoPusherOfManyWritersOnTwoHostsIsLost(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		hosts := []*host{startHost(t, newClient(t)), startHost(t, newClient(t))}
		atOnce(func(writer int) {
			a := hosts[writer%2].do(alice, http.MethodPost, v3+"/pushers/set", httpPusher("app", fmt.Sprint(writer)))
			if a.status != http.StatusOK {
				t.Errorf("writer %d: %d %s", writer, a.status, a.body)
			}
		})
		list := hosts[0].do(alice, http.MethodGet, v3+"/pushers", "")
		got := strings.Count(list.body, `"pushkey"`)
		if got != writers {
			t.Errorf("got %d pushers, want %d", got, writers)
		}
		t.Logf("%d of %d simultaneous new pushers are kept", got, writers)
	})
}
