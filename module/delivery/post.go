package delivery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
)

// posted is how a request has ended.
type posted struct {
	answer  module.GatewayAnswer
	class   content.Class
	verdict content.Verdict
	isLost  bool // the claim
}

// post sends a request, and renews the claim while it is under way. It cuts the
// request off where the claim lapses: then another host may send.
func (s *sending) post(life context.Context, body []byte, trace string) (p posted) {
	traced, end := s.observer.BeginPost(life, s.device.Gateway, trace)
	ctx, cancel := context.WithTimeout(traced, s.cfg.RequestTimeout)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		var err error
		p.answer, err = s.gateway.Post(ctx, s.device.URL, body)
		answered <- err
	}()
	timer := time.NewTimer(renewAfter)
	defer timer.Stop()
	for {
		select {
		case err := <-answered:
			p.class = classOf(err)
			p.verdict = content.Judge(p.answer, p.class, s.device.Key.Pushkey)
			end(string(outcomeOf(p.verdict, p.class)), p.answer.Status)
			return p
		case <-timer.C:
			err := s.renew(life)
			if errors.Is(err, module.ErrFenced) || err != nil && s.hasLapsed() {
				p.isLost = errors.Is(err, module.ErrFenced)
				cancel()
			}
			timer.Reset(renewAfter)
		}
	}
}

// classOf says why there is no answer.
func classOf(err error) content.Class {
	var network net.Error
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case err == nil:
		return content.ClassStatus
	case errors.Is(err, context.Canceled): // by this host
		return content.ClassUnsent
	case errors.Is(err, dialguard.ErrRefused):
		return content.ClassBlocked
	case errors.As(err, &dns):
		return content.ClassDNS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return content.ClassTimeout
	case errors.As(err, &certificate), errors.As(err, &unknown), errors.As(err, &record), errors.As(err, &alert):
		return content.ClassTLS
	}
	return content.ClassRefused
}
