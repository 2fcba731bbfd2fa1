// Package dialguard refuses connections to addresses that are not public; its API may
// change at any time. Users choose the URLs that notifications are
// sent to; what a name resolves to is known only when it is dialled, and may be
// another address each time. So a [Guard] looks at the address of each
// connection, after the name was resolved and before anything is sent.
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

// ErrRefused is in the chain of the error of a dial that a [Guard] refused,
// that of an [http.Client], too. To try again is of use only where the name may
// resolve to another address later.
var ErrRefused = errors.New("dialguard: refused")

// Guard refuses to connect to what is not public. It is immutable and safe for
// concurrent use.
type Guard struct{ rules *ssrf.Guardian }

// New returns a guard that lets TCP connections to public addresses and to
// those allowed pass, whatever the port: the Matrix specification does not say
// which port a push gateway has. Public is what IANA's special-purpose address
// registries do not list, and of IPv6 only what is global unicast (2000::/3).
//
// Allowed is pusher.Policy.AllowedPrefixes; its Validate says which prefixes
// fit. The others allow nothing. A host that reaches IPv4 by way of NAT64 allows
// 64:ff9b::/96, if its translator drops addresses that are not public.
func New(allowed ...netip.Prefix) *Guard {
	return &Guard{ssrf.New(
		ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(allowed...), ssrf.WithAllowedV6Prefixes(allowed...),
	)}
}

// Control is for [net.Dialer.Control]; the dialer's ControlContext must be nil,
// which would be called instead. It refuses, with [ErrRefused], all networks
// but TCP, addresses with a zone, and those that are neither public nor allowed.
// A name with more than one address may still be connected to another of them.
func (g *Guard) Control(network, address string, conn syscall.RawConn) error {
	if err := g.rules.Safe(network, address, conn); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// The bounds of a [Guard.Client] and a [Guard.Transport].
const (
	dialTimeout    = 10 * time.Second // to connect, and again to shake hands
	requestTimeout = 60 * time.Second // push gateways answer when the provider behind them has
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	maxIdleConns   = 1000 // in all, where concurrency is no greater
)

// Client returns a new client for notifications, of which up to concurrency are
// on their way at the same time. It uses a [Guard.Transport], takes at most 60 s
// for a request, its response's body included, and follows no redirect: it
// returns the response that has it, since it may lead from https to http and to
// other paths than pushers have.
//
// The caller must bound what it reads of a body, and read it to its end for the
// connection to be kept.
func (g *Guard) Client(concurrency int) *http.Client {
	return &http.Client{
		Transport:     g.Transport(concurrency),
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport returns a new transport whose every connection is guarded, for
// clients that [Guard.Client] does not fit. Up to concurrency connections to a
// host are kept for 90 s, so that as many requests at the same time connect no
// more often than they must. They speak HTTP/1.1: an HTTP/2 server can have a client
// repeat a request without end, and a silent one holds up all that share its
// connection. The transport takes no proxy from the environment, asks for no
// compression, and allows at most 10 s each to connect and to shake hands, 60 s for
// the header of a response, and 16 KiB of it.
//
// Its client should not follow redirects (CheckRedirect with
// [http.ErrUseLastResponse]), though they are dialled under guard like all else.
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
