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
func (p proxies) client(t *testing.T, addrs ...string) redis.UniversalClient {
	t.Helper()
	return p.newClient(t, -1, addrs...)
}

// retrying returns a client that retries.
func (p proxies) retrying(t *testing.T, addrs ...string) redis.UniversalClient {
	t.Helper()
	return p.newClient(t, 0, addrs...)
}

func (p proxies) newClient(t *testing.T, retries int, addrs ...string) (client redis.UniversalClient) {
	t.Helper()
	if len(addrs) == 1 {
		client = redis.NewClient(&redis.Options{
			Addr: addrs[0], Dialer: p.dial, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second, MaxRetries: retries,
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

// loseReplies makes every server lose every n-th reply to the commands until the context ends.
func (p proxies) loseReplies(ctx context.Context, n int, commands ...string) {
	if len(commands) == 0 {
		return
	}
	for _, proxy := range p {
		go func() {
			for ctx.Err() == nil {
				select {
				case <-proxy.CutReply(n, commands...).Struck():
				case <-ctx.Done():
				}
			}
		}()
	}
}
