package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TLSServer is a [Server] with a second port, for clients with TLS and a certificate.
type TLSServer struct {
	*Server
	TLSAddr       string
	CA, Cert, Key string // files in PEM; the servers and clients of a test share one certificate
}

// SingleTLS starts one server as [Single] does, with a port for TLS. A server of a
// cluster tells its clients about that port.
func SingleTLS(t testing.TB, args ...string) *TLSServer {
	t.Helper()
	s := &TLSServer{}
	s.CA, s.Cert, s.Key = certificate(t)
	port := freePort(t) // in a cluster, the bus is 10000 above this one
	s.TLSAddr = localAddr(port)
	s.Server = Single(t, append([]string{
		"--tls-port", strconv.Itoa(port), "--tls-ca-cert-file", s.CA, "--tls-cert-file", s.Cert, "--tls-key-file", s.Key,
		"--tls-cluster", "yes",
	}, args...)...)
	return s
}

// certificate writes a certificate for localhost that is its own authority, and its key.
func certificate(t testing.TB) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest"}, IPAddresses: []net.IP{net.ParseIP(localhost)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert = write("cert.pem", "CERTIFICATE", signed)
	return cert, cert, write("key.pem", "EC PRIVATE KEY", secret)
}
