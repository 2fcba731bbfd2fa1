// Package dialguard keeps whoever sends notifications from connecting to
// addresses that are not public. Users choose the URLs that notifications are
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

// Transport returns a new transport whose every connection is guarded. It takes
// no proxy from the environment, and at most 10 s each to connect and to shake
// hands.
//
// Redirects are dialled under guard like all else, but may lead from https to
// http and to other paths than pushers have: a client that sends notifications
// should not follow them (CheckRedirect with [http.ErrUseLastResponse]). It
// should also have a Timeout, and bound what it reads of a response.
func (g *Guard) Transport() *http.Transport {
	const timeout = 10 * time.Second
	dialer := &net.Dialer{Timeout: timeout, Control: g.Control}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: timeout,
		MaxIdleConns:        100,
		IdleConnTimeout:     90 * time.Second,
	}
}
