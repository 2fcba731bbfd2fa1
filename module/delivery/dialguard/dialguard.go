// Package dialguard refuses connections to addresses that are not public; its API may
// change at any time. Users choose the URLs of push gateways, and a name may resolve to
// another address each time. So a [Guard] checks the address of each connection, after
// the name was resolved and before any data is sent.
//
// It sees only connections that a [net.Dialer] makes with its Control. With a
// proxy it sees the proxy's address; the proxy has to guard then.
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

// ErrRefused is wrapped by the errors of dials that a [Guard] refused, and so by errors
// of an [http.Client]. A retry only helps if the name resolves to another address later.
var ErrRefused = errors.New("dialguard: refused")

// Guard refuses addresses that are not public. It is immutable and safe for
// concurrent use.
type Guard struct{ rules *ssrf.Guardian }

// New returns a guard that allows TCP connections to public addresses and to the allowed
// prefixes, on any port: the Matrix specification does not define the port of a push
// gateway. An address is public if IANA's special-purpose address registries do not list
// it. IPv6 addresses must also be global unicast (2000::/3).
//
// Allowed is pusher.Policy.AllowedPrefixes; its Validate says which prefixes are valid.
// Invalid ones allow no address. A host that reaches IPv4 through NAT64 allows
// 64:ff9b::/96, if its translator drops addresses that are not public.
func New(allowed ...netip.Prefix) *Guard {
	return &Guard{ssrf.New(
		ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(allowed...), ssrf.WithAllowedV6Prefixes(allowed...),
	)}
}

// Control is for [net.Dialer.Control]; the dialer's ControlContext must be nil. It
// refuses, with [ErrRefused], networks other than TCP, addresses with a zone, and
// addresses that are neither public nor allowed. The dialer then tries the other
// addresses of the name.
func (g *Guard) Control(network, address string, conn syscall.RawConn) error {
	if err := g.rules.Safe(network, address, conn); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// The bounds of a [Guard.Client] and a [Guard.Transport].
const (
	dialTimeout    = 10 * time.Second // to connect, and again to shake hands
	requestTimeout = 60 * time.Second // push gateways wait for their provider
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxIdleConns   = 1000 // in all, or concurrency if that is greater
)

// Client returns a new client for up to concurrency notifications at the same time. It
// uses a [Guard.Transport], and takes at most 60 s for a request with the response's
// body. It returns redirects instead of following them, because they may lead from https
// to http, or to other paths than pushers may have.
//
// The caller must bound how much of a body it reads. A connection is only reused after
// its body was read to the end.
func (g *Guard) Client(concurrency int) *http.Client {
	return &http.Client{
		Transport:     g.Transport(concurrency),
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport returns a new guarded transport, for callers that need another client than
// [Guard.Client]. It keeps up to concurrency idle connections to a host for 90 s. They
// use HTTP/1.1: an HTTP/2 server can make a client repeat a request without end, and a
// silent one blocks all requests on its connection. The transport ignores proxies of the
// environment and asks for no compression. It allows 10 s to connect, 10 s for the TLS
// handshake, and 60 s and 16 KiB for the header of a response.
//
// Its client should not follow redirects (CheckRedirect with
// [http.ErrUseLastResponse]), although the guard checks their addresses, too.
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
