package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
)

func atOnce(do func(writer int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for writer := range hosttest.Writers {
		group.Go(func() {
			<-start
			do(writer)
		})
	}
	close(start)
	group.Wait()
}

// Two hosts change the rules of one user at the same time.
func TestManyWritersKeepEveryChange(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
		hosts := []*hosttest.Host{hosttest.StartHost(t, newClient(t)), hosttest.StartHost(t, newClient(t))}
		hosts[0].Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
		atOnce(func(writer int) {
			path := fmt.Sprintf("%s/pushrules/global/room/writer%d", hosttest.V3, writer)
			if a := hosts[writer%2].Do(hosttest.Alice, http.MethodPut, path, `{"actions":[]}`); a.Status != http.StatusOK {
				t.Errorf("writer %d: %d %s", writer, a.Status, a.Body)
			}
		})
		rules := hosts[1].Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "").Body
		kept := strings.Count(rules, `"rule_id":"writer`)
		t.Logf("kept %d of %d changes of one user's rules at once", kept, hosttest.Writers)
		if kept != hosttest.Writers {
			t.Error("changes are lost")
		}
	})
}

// room is the rest of a limit for many writers.
const room = 5

func TestManyWritersFillALimitExactly(t *testing.T) {
	t.Parallel()
	defaults := 15 // of the specification
	limits := fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.RuleLimits.MaxRules = defaults + room
		c.PusherPolicy.MaxPushers = room
		return c
	})
	for _, test := range []struct {
		name    string
		request func(writer int) (user, method, path, body string)
		refusal string
	}{
		{"rules", func(writer int) (user, method, path, body string) {
			return hosttest.Alice, http.MethodPut, fmt.Sprintf("/pushrules/global/room/%d", writer), `{"actions":[]}`
		}, `{"errcode":"M_INVALID_PARAM","error":"A user has at most 20 push rules."}`},
		{"pushers", func(writer int) (user, method, path, body string) {
			return hosttest.Alice, http.MethodPost, "/pushers/set", hosttest.HTTPPusher("app", fmt.Sprint(writer))
		}, `{"errcode":"M_INVALID_PARAM","error":"A user has at most 5 pushers."}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			eachRedis(t, func(t *testing.T, newClient func(*testing.T) redis.UniversalClient) {
				hosts := []*hosttest.Host{hosttest.StartHost(t, newClient(t), limits), hosttest.StartHost(t, newClient(t), limits)}
				hosts[0].Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
				var made atomic.Int64
				atOnce(func(writer int) {
					user, method, path, body := test.request(writer)
					switch a := hosts[writer%2].Do(user, method, hosttest.V3+path, body); {
					case a.Status == http.StatusOK:
						made.Add(1)
					case a.Status != http.StatusBadRequest || a.Body != test.refusal:
						t.Errorf("writer %d: %d %s", writer, a.Status, a.Body)
					}
				})
				if n := made.Load(); n != room {
					t.Errorf("%d of %d writers succeeded, want %d", n, hosttest.Writers, room)
				}
			})
		})
	}
}
