package integration

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

type proxies map[string]*redistest.Proxy

func newProxies(t *testing.T, servers ...*redistest.Server) proxies {
	t.Helper()
	p := proxies{}
	for _, server := range servers {
		_, port, _ := net.SplitHostPort(server.Addr())
		p[port] = redistest.NewProxy(t, server)
	}
	return p
}

// dial is for clients that know the servers' own addresses.
func (p proxies) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if proxy, found := p[port]; found {
		addr = proxy.Addr()
	}
	dialer := net.Dialer{Timeout: time.Second}
	return dialer.DialContext(ctx, network, addr)
}

// client returns a client with the settings of the host developer's page. A client of one server does not retry,
// so the store sees lost replies.
func (p proxies) client(t *testing.T, addrs ...string) (client redis.UniversalClient) {
	t.Helper()
	if len(addrs) == 1 {
		client = redis.NewClient(&redis.Options{
			Addr: addrs[0], Dialer: p.dial, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second, MaxRetries: -1,
			MaintNotificationsConfig: noMaintenance(),
		})
	} else {
		client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, Dialer: p.dial, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second,
			ClusterStateReloadInterval: 2 * time.Second, MaintNotificationsConfig: noMaintenance(),
		})
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// loseReplies makes every server lose every n-th reply to a store's command until the context ends.
func (p proxies) loseReplies(ctx context.Context, n int) {
	for _, proxy := range p {
		go func() {
			for ctx.Err() == nil {
				select {
				case <-proxy.CutReply(n, either...).Struck():
				case <-ctx.Done():
				}
			}
		}()
	}
}

// eachLossy runs a test on a server and on a cluster that lose every fifth reply to a store's command. Each call
// of newClient is for another host.
func eachLossy(t *testing.T, run func(t *testing.T, newClient func(*testing.T) redis.UniversalClient)) {
	redistest.Require(t)
	for name, start := range map[string]func(*testing.T) []*redistest.Server{
		"standalone": func(t *testing.T) []*redistest.Server { return []*redistest.Server{redistest.Single(t)} },
		"cluster":    func(t *testing.T) []*redistest.Server { return redistest.Cluster(t, 3, 0).Masters() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := start(t)
			way, addrs := newProxies(t, servers...), []string{}
			for _, server := range servers {
				addrs = append(addrs, server.Addr())
			}
			way.loseReplies(t.Context(), 5)
			run(t, func(t *testing.T) redis.UniversalClient { return way.client(t, addrs...) })
		})
	}
}
