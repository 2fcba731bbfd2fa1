package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// canned answers GET itself, so that the test counts only the host's allocations.
type canned struct{ event atomic.Pointer[string] }

func (*canned) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*canned) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *canned) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		event := c.event.Load()
		if get, ok := cmd.(*redis.StringCmd); ok && cmd.Name() == "get" && event != nil {
			get.SetVal(*event)
			return nil
		}
		return next(ctx, cmd)
	}
}

// A read allocates the same for any number of rules, and at most this much. About half are the test client's.
func TestAReadsAllocationsDoNotGrowWithTheRules(t *testing.T) {
	const bound = 175 // with the race detector; 155 without
	_, client := hosttest.Embedded(t)
	h := hosttest.StartHost(t, client)
	c := &canned{}
	client.AddHook(c)
	for _, path := range []string{"/pushrules/", "/pushrules/global/override/.m.rule.master/enabled", "/pushrules/global/room/!room-7:example.org"} {
		var least, most float64
		for i, rules := range []int{10, 100, 1000, 9000} {
			event := eventWith(rules)
			c.event.Store(&event)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL+hosttest.V3+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+hosttest.Alice)
			read := func() {
				response, err := h.HTTP.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if n, err := io.Copy(io.Discard, response.Body); err != nil || n == 0 || response.StatusCode != http.StatusOK {
					t.Fatal(path, response.Status, n, err)
				}
			}
			read() // the host now knows the set
			allocations := testing.AllocsPerRun(100, read)
			if i == 0 {
				least = allocations
			}
			least, most = min(least, allocations), max(most, allocations)
		}
		t.Logf("%s: %.0f to %.0f", path, least, most)
		if most > bound || most > least+10 {
			t.Errorf("%s: %.0f to %.0f allocations, want at most %d and no growth", path, least, most, bound)
		}
	}
}

func eventWith(number int) string {
	texts := make([]string, number)
	for i := range texts {
		texts[i] = fmt.Sprintf(`{"rule_id":"!room-%d:example.org","default":false,"enabled":true,"actions":["notify"]}`, i)
	}
	defaults := pushrule.ServerDefault(hosttest.Alice)
	set := strings.Replace(defaults.JSON(), `"room":[`, `"room":[`+strings.Join(texts, ","), 1)
	rules, err := pushrule.Read(set)
	if err != nil {
		panic(err) // the set above is invalid
	}
	e := stored.Event{Rules: rules, Found: true}
	return e.Text(stored.Revision{}.Next(1, stored.Write{Writer: "TEST", Attempt: 1}))
}
