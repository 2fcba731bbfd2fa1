// Package dialguard refuses connections to addresses that are not public; its API may
// change at any time. Users choose the URLs of push gateways, and a name may resolve to
// another address each time. So a [Guard] checks the address of each connection before
// any data is sent. If a host connects through a proxy, the guard sees only the address of
// the proxy, so the proxy must check addresses.
package dialguard

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrRefused is wrapped by the errors of refused dials, also in an [http.Client]. A retry
// only helps if the name resolves to another address later.
var ErrRefused = errors.New("dialguard: refused")

// Guard refuses addresses that are not public. It is immutable and safe for
// concurrent use.
type Guard struct{ rules *ssrf.Guardian }

// New returns a guard that allows TCP connections, on any port, to public addresses and
// to the allowed prefixes (pusher.Policy.AllowedPrefixes). An address is public if IANA's
// special-purpose address registries do not list it; an IPv6 address must also be global
// unicast (2000::/3).
//
// Invalid prefixes allow no address. A host that reaches IPv4 through NAT64 allows
// 64:ff9b::/96, if its translator drops addresses that are not public.
func New(allowed ...netip.Prefix) *Guard {
	return &Guard{ssrf.New(
		ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(allowed...), ssrf.WithAllowedV6Prefixes(allowed...),
	)}
}

// Control is for [net.Dialer.Control]; the dialer's ControlContext must be nil. It
// refuses, with [ErrRefused], networks other than TCP, addresses with a zone, and
// addresses that are neither public nor allowed.
func (g *Guard) Control(network, address string, conn syscall.RawConn) error {
	if err := g.rules.Safe(network, address, conn); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

const (
	dialTimeout    = 10 * time.Second // for the connection, and again for the TLS handshake
	requestTimeout = 60 * time.Second // push gateways wait for their provider
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxIdleConns   = 1000 // to all gateways; or the concurrency, if that is more
)

// Client returns a client with a [Guard.Transport] that takes at most 60 s for a request
// with the response's body. It follows no redirects, because they may lead from https to
// http, or to forbidden paths. The caller must bound how much of a body it reads, and
// read it to its end, so that the connection is kept.
func (g *Guard) Client(concurrency int) *http.Client {
	return &http.Client{
		Transport:     g.Transport(concurrency),
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport returns a guarded transport for a client that should not follow redirects.
// It keeps up to concurrency idle connections to a host for 90 s. They use HTTP/1.1: an
// HTTP/2 server can make a client repeat a request without end, and a silent one blocks
// all requests on its connection. The transport ignores proxies of the environment and
// asks for no compression. It allows 10 s to connect, 10 s for the TLS handshake, and
// 60 s and 16 KiB for the header of a response.
func (g *Guard) Transport(concurrency int) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, Control: g.Control}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  requestTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxIdleConns:           max(maxIdleConns, concurrency),
		MaxIdleConnsPerHost:    max(1, concurrency),
		IdleConnTimeout:        idleTimeout,
	}
}
