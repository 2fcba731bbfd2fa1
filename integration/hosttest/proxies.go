package hosttest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/redistest"
)

// Proxies are before some servers, by port.
type Proxies map[string]*redistest.Proxy

// NewProxies starts a proxy before each server.
func NewProxies(t *testing.T, servers ...*redistest.Server) Proxies {
	t.Helper()
	p := Proxies{}
	for _, server := range servers {
		_, port, _ := net.SplitHostPort(server.Addr())
		p[port] = redistest.NewProxy(t, server)
	}
	return p
}

// Dial is for clients that know the servers' own addresses.
func (p Proxies) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
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

// LoseReplies makes every server lose every n-th reply to the commands until the context ends.
func (p Proxies) LoseReplies(ctx context.Context, n int, commands ...string) {
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
