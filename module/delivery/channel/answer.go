package channel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
)

// Answer is the answer to a request.
type Answer struct {
	module.Outcome // empty if this host sent nothing, or cancelled the request

	Class      Class
	Status     int           // 0 without an answer
	RetryAfter time.Duration // how long to wait at least, for Throttled and Busy; 0 if the gateway does not say

	// IsOwn says that the reason may concern this pusher alone, so that it waits for longer.
	IsOwn bool

	// GoneAfter is for an answer that may mean [module.Gone]: it does if the pusher has got it for so
	// long, while the gateway took others. 0: it does not.
	GoneAfter time.Duration

	// Patience is how many times longer than usual the pusher waits, 0 for 1.
	Patience float64

	// Err is why the gateway takes nothing, for the log.
	Err error
}

// Class is why there is no answer.
type Class string

// The classes; ClassStatus is for an answer.
const (
	ClassStatus  Class = "status"
	ClassDNS     Class = "dns"
	ClassTLS     Class = "tls"
	ClassRefused Class = "refused" // the connection was refused or closed
	ClassTimeout Class = "timeout"
	ClassBlocked Class = "blocked"
	ClassUnsent  Class = "unsent"
)

// IsAlive reports whether the gateway works.
func (a Answer) IsAlive() bool {
	return a.Outcome == module.Delivered || a.Outcome == module.Gone || a.Outcome == module.Unfit
}

// MinWait is the shortest wait that a gateway can ask for.
const MinWait = time.Second

const (
	firstWait    = time.Second      // doubles with each failure
	maxWait      = 16 * time.Second // while the gateway may have an outage
	maxWaitAlone = 10 * time.Minute // of a pusher that is busy, or has failed for aloneAfter
	aloneAfter   = time.Hour
)

// MaxWait is the longest wait of a pusher for its next try.
const MaxWait = time.Hour

// RetryIn returns how long a pusher waits: a random part of a limit that doubles with
// each attempt, so that pushers do not retry together. Random is from 0 to 1.
func (a Answer) RetryIn(attempts int, failingFor time.Duration, random float64) time.Duration {
	longest, least := maxWait, time.Duration(0)
	if a.Outcome != module.Failed || a.IsOwn || failingFor > aloneAfter {
		longest = maxWaitAlone
	}
	switch a.Outcome {
	case module.Throttled:
		least = max(a.RetryAfter, MinWait)
	case module.Busy:
		least = a.RetryAfter
	}
	wait := min(time.Duration(max(1, a.Patience)*random*float64(min(firstWait<<min(max(attempts-1, 0), 16), longest))), maxWaitAlone)
	return max(wait, min(least, MaxWait))
}

// ClassOf returns why an error is no answer.
func ClassOf(err error) Class {
	var network net.Error
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case err == nil:
		return ClassStatus
	case errors.Is(err, context.Canceled): // by this host
		return ClassUnsent
	case errors.Is(err, dialguard.ErrRefused):
		return ClassBlocked
	case errors.As(err, &dns):
		return ClassDNS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return ClassTimeout
	case errors.As(err, &certificate), errors.As(err, &unknown), errors.As(err, &record), errors.As(err, &alert):
		return ClassTLS
	}
	return ClassRefused
}

// WithoutURL removes the URL from an error, since it may be secret.
func WithoutURL(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// IsNetwork reports whether the network has failed, and not a setting.
func IsNetwork(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
