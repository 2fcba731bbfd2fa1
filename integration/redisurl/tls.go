package redisurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// addTLS applies the flags for TLS. With them, servers that no URL names have TLS, too.
func (f *Flags) addTLS(s *Servers) error {
	switch {
	case f.CA == "" && f.Cert == "" && f.Key == "":
		return nil
	case s.Mode == Embedded:
		return errors.New("-redis-ca, -redis-cert and -redis-key need -redis-mode standalone, sentinel or cluster")
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("-redis-cert and -redis-key need each other")
	case s.shared().tls == nil && strings.Contains(f.Where, "://"):
		return errors.New("-redis-ca, -redis-cert and -redis-key need a URL with rediss://, or addresses")
	}
	var roots *x509.CertPool // nil: the system's
	var err error
	if f.CA != "" {
		if roots, err = readCertificates(f.CA); err != nil {
			return fmt.Errorf("-redis-ca: %w", err)
		}
	}
	config := newTLS(roots, f.Cert, f.Key)
	if f.Cert == "" {
		config.GetClientCertificate = nil
	} else if _, err := config.GetClientCertificate(nil); err != nil {
		return fmt.Errorf("-redis-cert, -redis-key: %w", err)
	}
	if before := s.shared().tls; before != nil {
		config.InsecureSkipVerify = before.InsecureSkipVerify
	}
	s.single.TLSConfig, s.sentinels.TLSConfig, s.cluster.TLSConfig = config, config, config
	return nil
}

func readCertificates(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s has no certificate in PEM", file)
	}
	return pool, err
}

func newTLS(roots *x509.CertPool, cert, key string) *tls.Config {
	return &tls.Config{
		RootCAs: roots, // with the authority of the servers' certificates
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key) // for each connection: files may be renewed
			return &pair, err
		},
		MinVersion: tls.VersionTLS12,
	}
}
