package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pushfx/pushfx/integration/redistest"
)

// BenchmarkEndpoints measures whole requests over HTTP, one after another, on a
// real Redis: what a client waits for, with the cost of client and server.
func BenchmarkEndpoints(b *testing.B) {
	redistest.Require(b)
	server := redistest.Single(b)
	h := startHost(b, server.Client(b))
	h.do(alice, http.MethodGet, v3+"/pushrules/", "")
	h.do(alice, http.MethodPut, v3+"/pushrules/global/content/cake", `{"pattern":"cake","actions":["notify"]}`)
	for i := range 3 {
		h.do(alice, http.MethodPost, v3+"/pushers/set", httpPusher("app", fmt.Sprint(i)))
	}
	for _, endpoint := range []struct {
		name, method, path string
		body               func(i int) string
	}{
		{"get the set", http.MethodGet, "/pushrules/", nil},
		{"get a rule", http.MethodGet, "/pushrules/global/content/cake", nil},
		{"put a rule", http.MethodPut, "/pushrules/global/content/cake", func(i int) string {
			return fmt.Sprintf(`{"pattern":"cake %d","actions":["notify"]}`, i)
		}},
		{"put enabled", http.MethodPut, "/pushrules/global/content/cake/enabled", func(i int) string {
			return fmt.Sprintf(`{"enabled":%t}`, i%2 == 0)
		}},
		{"list pushers", http.MethodGet, "/pushers", nil},
		{"set a pusher", http.MethodPost, "/pushers/set", func(i int) string {
			return strings.Replace(httpPusher("app", "1"), "Phone", fmt.Sprint("Phone ", i), 1)
		}},
	} {
		b.Run(endpoint.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				body := ""
				if endpoint.body != nil {
					body = endpoint.body(i)
				}
				if a := h.do(alice, endpoint.method, v3+endpoint.path, body); a.status != http.StatusOK {
					b.Fatal(a)
				}
			}
		})
	}
}

// BenchmarkOneUser measures changes of one user's rules over HTTP on a real
// Redis: by one client that makes them one after the other, and by many that
// make them at the same time, on one host and spread over four.
func BenchmarkOneUser(b *testing.B) {
	redistest.Require(b)
	for _, load := range []struct{ clients, hosts int }{{1, 1}, {writers, 1}, {writers, 4}} {
		b.Run(fmt.Sprintf("%d clients on %d hosts", load.clients, load.hosts), func(b *testing.B) {
			server := redistest.Single(b)
			var hosts []*host
			for range load.hosts {
				hosts = append(hosts, startHost(b, server.Client(b)))
			}
			hosts[0].do(alice, http.MethodGet, v3+"/pushrules/", "")
			var sent atomic.Int64
			b.ResetTimer()
			var working sync.WaitGroup
			for client := range load.clients {
				working.Go(func() {
					for n := sent.Add(1); n <= int64(b.N); n = sent.Add(1) {
						path := fmt.Sprintf("%s/pushrules/global/room/!room-%d:example.org", v3, n%200)
						a := hosts[client%load.hosts].do(alice, http.MethodPut, path, fmt.Sprintf(`{"actions":["n%d"]}`, n))
						if a.status != http.StatusOK {
							b.Error(a)
						}
					}
				})
			}
			working.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
		})
	}
}
