package redisurl

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func serversOf(t *testing.T, args ...string) (Servers, error) {
	t.Helper()
	var flags Flags
	set := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.Add(set, Standalone, "standalone, sentinel or cluster")
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags.Servers(func(string) string { return "" })
}

// Redis asks clients for a certificate unless its tls-auth-clients says otherwise.
func TestClientsShowTheirCertificate(t *testing.T) {
	t.Parallel()
	single, node := redistest.SingleTLS(t), redistest.SingleTLS(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	admin := node.Client(t)
	if err := admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
		time.Sleep(10 * time.Millisecond)
	}
	for _, test := range []struct {
		name   string
		server *redistest.TLSServer
		args   []string
		err    string // of Check
	}{
		{name: "address", server: single, args: []string{"-redis", single.TLSAddr}},
		{name: "URL", server: single, args: []string{"-redis", "rediss://" + single.TLSAddr}},
		{name: "cluster", server: node, args: []string{"-redis-mode", "cluster", "-redis", node.TLSAddr}},
		{name: "cluster URL", server: node, args: []string{"-redis-mode", "cluster", "-redis", "rediss://" + node.TLSAddr}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := serversOf(t, append(test.args, "-redis-ca", test.server.CA, "-redis-cert", test.server.Cert, "-redis-key", test.server.Key)...)
			if err != nil || !strings.HasSuffix(s.String(), ", with TLS") {
				t.Fatalf("%s: %v", s, err)
			}
			if err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
			client := s.Client()
			defer client.Close()
			if err := client.Set(t.Context(), "key", "value", 0).Err(); err != nil {
				t.Error(err)
			}
			without, err := serversOf(t, append(test.args, "-redis-ca", test.server.CA)...)
			if err == nil {
				err = without.Check(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), "certificate required") {
				t.Errorf("without a certificate: got %v", err)
			}
		})
	}
}

func TestARenewedCertificateCounts(t *testing.T) {
	t.Parallel()
	server, other := redistest.SingleTLS(t), redistest.SingleTLS(t)
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	install := func(from *redistest.TLSServer) {
		for path, source := range map[string]string{cert: from.Cert, key: from.Key} {
			text, err := os.ReadFile(source)
			if err == nil {
				err = os.WriteFile(path, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	install(other) // as good as an expired one
	s, err := serversOf(t, "-redis", server.TLSAddr, "-redis-ca", server.CA, "-redis-cert", cert, "-redis-key", key)
	if err != nil {
		t.Fatal(err)
	}
	client := s.Client()
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("the server takes the certificate of another authority")
	}
	install(server)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestBehindSentinelsAllServersHaveTLS(t *testing.T) {
	t.Parallel()
	ca := redistest.SingleTLS(t).CA
	s, err := serversOf(t, "-redis-mode", "sentinel", "-redis", "a:1,b:2", "-redis-ca", ca)
	if err != nil {
		t.Fatal(err)
	}
	client := s.Client().(*redis.Client)
	defer client.Close()
	if client.Options().TLSConfig == nil || s.shared().tls == nil {
		t.Error("no TLS")
	}
}

func TestFlagsForTLSFit(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("a", "1")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-redis-mode", "embedded", "-redis-ca", empty}, "need -redis-mode standalone, sentinel or cluster"},
		{[]string{"-redis", address, "-redis-cert", empty}, "-redis-cert and -redis-key need each other"},
		{[]string{"-redis", address, "-redis-key", empty}, "-redis-cert and -redis-key need each other"},
		{[]string{"-redis", "redis://" + address, "-redis-ca", empty}, "need a URL with rediss://, or addresses"},
		{[]string{"-redis", address, "-redis-ca", empty}, "-redis-ca: " + empty + " has no certificate in PEM"},
		{[]string{"-redis", address, "-redis-ca", empty + "x"}, "-redis-ca: open " + empty + "x"},
		{[]string{"-redis", address, "-redis-cert", empty, "-redis-key", empty}, "-redis-cert, -redis-key: tls: "},
	} {
		if _, err := serversOf(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.args, err, test.want)
		}
	}
}
