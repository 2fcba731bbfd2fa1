package dialguard_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/pusher"
)

var loopback = netip.MustParsePrefix("127.0.0.1/32")

func TestANameThatResolvesToThisMachineIsRefusedAtDial(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string][]string{
		"127.0.0.1":            {"127.0.0.1"},
		"another of 127/8":     {"127.1.2.3"},
		"all addresses":        {"0.0.0.0"},
		"a private network":    {"10.0.0.1"},
		"two that are private": {"192.168.0.1", "127.0.0.1"},
		"the metadata service": {"169.254.169.254"},
		"IPv4 mapped to IPv6":  {"::ffff:127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateway, names := newGateway(t), newNameServer(t, always(addresses...))
			_, err := guarded(names, dialguard.New()).DialContext(t.Context(), "tcp", gateway.named("push.example.org"))
			if !errors.Is(err, dialguard.ErrRefused) {
				t.Errorf("got error %v", err)
			}
			if !strings.Contains(names.asked(), "push.example.org.") {
				t.Errorf("the name server was asked for %q", names.asked())
			}
			gateway.wantNoConnection()
		})
	}
}

func TestARebindingNameIsRefusedAtDial(t *testing.T) {
	t.Parallel()
	gateway, names := newGateway(t), newNameServer(t, publicOnce("127.0.0.1"))
	looked, err := names.resolver.LookupNetIP(t.Context(), "ip4", "push.example.org")
	if err != nil || len(looked) != 1 || looked[0] != netip.MustParseAddr("9.9.9.9") {
		t.Fatalf("the first look: got %v, %v", looked, err)
	}
	_, err = guarded(names, dialguard.New()).DialContext(t.Context(), "tcp4", gateway.named("push.example.org"))
	if !errors.Is(err, dialguard.ErrRefused) || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("got error %v", err)
	}
	gateway.wantNoConnection()
}

func TestANameThatResolvesToAnAllowedAddressIsDialled(t *testing.T) {
	t.Parallel()
	gateway, names := newGateway(t), newNameServer(t, always("127.0.0.1"))
	conn, err := guarded(names, dialguard.New(loopback)).DialContext(t.Context(), "tcp", gateway.named("push.example.org"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := gateway.next(); got != conn.LocalAddr().String() {
		t.Errorf("got a connection from %s, want %v", got, conn.LocalAddr())
	}
}

func TestAddressesOfThisMachineAreRefusedInEveryForm(t *testing.T) {
	t.Parallel()
	gateway := newGateway(t)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "", "::ffff:127.0.0.1", "::1", "::", "localhost"} {
		conn, err := guarded(nil, dialguard.New()).DialContext(t.Context(), "tcp", gateway.named(host))
		switch {
		case err == nil:
			conn.Close()
			t.Errorf("%q was dialled", host)
		case !errors.Is(err, dialguard.ErrRefused) && hasIPv6():
			t.Errorf("%q: got error %v", host, err)
		}
	}
	gateway.wantNoConnection()
}

func TestOnlyTCPPasses(t *testing.T) {
	t.Parallel()
	everything := dialguard.New(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for network, address := range map[string]string{"unix": socket, "udp": "127.0.0.1:9", "udp4": "127.0.0.1:9"} {
		if _, err := guarded(nil, everything).DialContext(t.Context(), network, address); !errors.Is(err, dialguard.ErrRefused) {
			t.Errorf("%s: got error %v", network, err)
		}
	}
}

func TestTheGuardAndThePolicyRefuseTheSameAddresses(t *testing.T) {
	t.Parallel()
	for _, allowed := range [][]netip.Prefix{
		nil,
		{netip.MustParsePrefix("10.20.0.0/16"), loopback},
		{netip.MustParsePrefix("fd00:1::/32"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("64:ff9b::/96")},
	} {
		guard, policy := dialguard.New(allowed...), pusher.DefaultPolicy()
		policy.AllowedPrefixes = allowed
		for address, want := range map[string]string{
			"9.9.9.9:443": "", "1.1.1.1:22": "", "[2620:fe::fe]:8443": "", "[2001:4860:4860::8888]:1": "",
			"0.0.0.0:80": "any", "10.0.0.1:443": "any", "10.20.0.1:443": "10.20.0.0/16", "100.64.0.1:443": "any",
			"127.0.0.1:443": "127.0.0.1/32", "127.0.0.2:443": "any", "169.254.169.254:80": "any", "172.16.0.1:443": "any",
			"192.0.2.1:443": "any", "192.168.0.1:443": "any", "198.18.0.1:443": "any", "198.51.100.1:443": "any",
			"203.0.113.1:443": "any", "224.0.0.1:443": "any", "240.0.0.1:443": "any", "255.255.255.255:443": "any",
			"[::]:443": "any", "[::1]:443": "::1/128", "[::127.0.0.1]:443": "any", "[::ffff:9.9.9.9]:443": "any",
			"[64:ff9b::7f00:1]:443": "64:ff9b::/96", "[64:ff9b:1::1]:443": "any", "[100::1]:443": "any", "[2001::1]:443": "any",
			"[2001:db8::1]:443": "any", "[2002:7f00:1::]:443": "any", "[3fff::1]:443": "any", "[5f00::1]:443": "any",
			"[fc00::1]:443": "any", "[fd00:1::1]:443": "fd00:1::/32", "[fe80::1]:443": "any", "[fe80::1%25eth0]:443": "any",
			"[2620:fe::fe%25eth0]:443": "any", "[fec0::1]:443": "any", "[ff02::1]:443": "any", "[4000::1]:443": "any",
		} {
			pass := want == "" || strings.Contains(fmt.Sprint(allowed), want)
			dialled := guard.Control("tcp4", strings.Replace(address, "%25", "%", 1), nil)
			if (dialled == nil) != pass || !pass && !errors.Is(dialled, dialguard.ErrRefused) {
				t.Errorf("%s dialled, %v allowed: got error %v", address, allowed, dialled)
			}
			named := policy.Check(pusher.Pusher{
				Key: pusher.Key{AppID: "app", Pushkey: "key"}, Kind: pusher.HTTP,
				Data: `{"url":"https://` + address + pusher.NotifyPath + `"}`,
			})
			if (named == nil) != pass {
				t.Errorf("%s named, %v allowed: got error %v", address, allowed, named)
			}
		}
	}
}

func TestInvalidAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "9.9.9.9", "push.example.org:443", "9.9.9.9:https", "[9.9.9.9]:443", "/socket"} {
		if err := dialguard.New().Control("tcp4", address, nil); !errors.Is(err, dialguard.ErrRefused) {
			t.Errorf("%q: got error %v", address, err)
		}
	}
}

func TestATransportRefusesWithTheTypedError(t *testing.T) {
	t.Parallel()
	gateway := newGateway(t)
	client := &http.Client{Transport: dialguard.New().Transport(1)}
	_, err := client.Post("http://"+gateway.named("127.0.0.1")+pusher.NotifyPath, "application/json", strings.NewReader("{}"))
	if !errors.Is(err, dialguard.ErrRefused) {
		t.Errorf("got error %v", err)
	}
	gateway.wantNoConnection()
	if dialguard.New().Transport(1).Proxy != nil {
		t.Error("a proxy would dial instead")
	}
}

func TestARedirectToAnAddressThatIsNotAllowedIsRefused(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []string{"http://127.0.0.2", "http://10.0.0.1", "http://169.254.169.254/latest/meta-data", "http://0.0.0.0"} {
		visits := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			visits++
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}))
		client := &http.Client{Transport: dialguard.New(loopback).Transport(1)}
		_, err := client.Post(server.URL, "application/json", strings.NewReader("{}"))
		server.Close()
		if visits != 1 || !errors.Is(err, dialguard.ErrRefused) {
			t.Errorf("%s, %d visits: got error %v", elsewhere, visits, err)
		}
	}
}

// An HTTP/2 server can make a client repeat a request without end.
func TestATransportUsesOnlyHTTP1(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport := dialguard.New(loopback).Transport(1)
	defer transport.CloseIdleConnections()
	reply, err := withCertificate(&http.Client{Transport: transport}, server).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if body, err := io.ReadAll(reply.Body); err != nil || string(body) != "HTTP/1.1" {
		t.Errorf("got %q, %v", body, err)
	}
}

func withCertificate(client *http.Client, server *httptest.Server) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	return client
}

func TestIdleConnectionsAreKeptForConcurrentRequests(t *testing.T) {
	t.Parallel()
	const workers, posts = 16, 50
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "{}") }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS() // without HTTP/2, which needs one connection
	defer server.Close()
	client := withCertificate(dialguard.New(loopback).Client(workers), server)
	defer client.CloseIdleConnections()
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for range posts {
				reply, err := client.Post(server.URL, "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, reply.Body)
				reply.Body.Close()
			}
		})
	}
	working.Wait()
	if got := connections.Load(); got > 5*workers {
		t.Errorf("%d connections for %d posts of %d workers", got, workers*posts, workers)
	}
}

func TestAClientReturnsRedirectsInsteadOfFollowingThem(t *testing.T) {
	t.Parallel()
	visits := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visits++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	reply, err := dialguard.New(loopback).Client(1).Post(server.URL, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusTemporaryRedirect || visits != 1 {
		t.Errorf("got %s after %d visits", reply.Status, visits)
	}
}

func TestAHeaderOfAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{"many lines": "X: y\r\n", "one long line": strings.Repeat("x", 4096)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gateway sync.WaitGroup
			sent := 0
			transport := dialguard.New().Transport(1)
			transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				gateway.Go(func() {
					defer far.Close()
					http.ReadRequest(bufio.NewReader(far))
					io.WriteString(far, "HTTP/1.1 200 OK\r\n")
					for sent < 1<<20 {
						n, err := io.WriteString(far, line)
						if sent += n; err != nil {
							return
						}
					}
				})
				return near, nil
			}
			if reply, err := (&http.Client{Transport: transport}).Get("http://push.example.org/"); err == nil {
				reply.Body.Close()
				t.Errorf("got %s", reply.Status)
			}
			if gateway.Wait(); sent > 32<<10 {
				t.Errorf("%d bytes were read", sent)
			}
		})
	}
}

// A gateway is silent, or sends its answer too slowly.
func TestAnAnswerIsBoundedInTime(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"silent":        "",
		"a slow header": "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 100),
		"a slow body":   "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := dialguard.New().Client(1)
				near, far := net.Pipe()
				client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return near, nil }
				var gateway sync.WaitGroup
				gateway.Go(func() { http.ReadRequest(bufio.NewReader(far)) })
				gateway.Go(func() {
					for _, b := range []byte(answer) {
						time.Sleep(time.Second)
						if _, err := far.Write([]byte{b}); err != nil {
							return
						}
					}
				})
				start := time.Now()
				reply, err := client.Get("http://push.example.org/")
				if err == nil {
					_, err = io.ReadAll(reply.Body)
					reply.Body.Close()
				}
				if took := time.Since(start); err == nil || took > time.Minute {
					t.Errorf("got error %v after %v", err, took)
				}
				near.Close()
				far.Close()
				gateway.Wait()
			})
		})
	}
}

// The gateway is in the host's own network.
func Example() {
	policy := pusher.DefaultPolicy()
	policy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}

	client := dialguard.New(policy.AllowedPrefixes...).Client(64)
	_, err := client.Get("http://192.168.0.1/")
	fmt.Println(errors.Is(err, dialguard.ErrRefused))
	// Output: true
}

// guarded returns a guarded dialer. If names is nil, it uses the machine's resolver.
func guarded(names *nameServer, guard *dialguard.Guard) *net.Dialer {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: guard.Control}
	if names != nil {
		dialer.Resolver = names.resolver
	}
	return dialer
}

// hasIPv6 reports whether the machine has IPv6; otherwise a dial never reaches the guard.
func hasIPv6() bool {
	listener, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return false
	}
	listener.Close()
	return true
}
