package integration

import (
	"context"
	"net"
	"testing"
	"time"

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

// loseReplies makes every server lose every n-th reply to the commands until the context ends.
func (p proxies) loseReplies(ctx context.Context, n int, commands ...string) {
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
