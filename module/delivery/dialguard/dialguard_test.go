package dialguard_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/pusher"
)

var loopback = netip.MustParsePrefix("127.0.0.1/32")

// A transport dials the address that it has checked: a name resolves to another address each time.
func TestATransportChecksTheAddressThatItDials(t *testing.T) {
	resolveTo(t, "127.0.0.1", "127.0.0.2", "127.0.0.1")
	connections := 0
	gateway := httptest.NewUnstartedServer(http.NotFoundHandler())
	gateway.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections++
		}
	}
	gateway.Start()
	url := strings.Replace(gateway.URL, "127.0.0.1", "push.example.org", 1)
	for _, test := range []struct {
		guard   *dialguard.Guard
		refused string
	}{
		{dialguard.New(loopback), ""},
		{dialguard.New(loopback), "127.0.0.2"},
		{dialguard.New(), "127.0.0.1"},
	} {
		transport := test.guard.Transport(1)
		if transport.Proxy != nil {
			t.Error("a proxy would dial instead")
		}
		reply, err := (&http.Client{Transport: transport}).Get(url)
		if err == nil {
			reply.Body.Close()
			transport.CloseIdleConnections()
		}
		if refused := errors.Is(err, dialguard.ErrRefused) && strings.Contains(err.Error(), test.refused); refused != (test.refused != "") || !refused && err != nil {
			t.Errorf("%q: got error %v", test.refused, err)
		}
	}
	if gateway.Close(); connections != 1 {
		t.Errorf("%d connections have reached the gateway, want 1", connections)
	}
}

// resolveTo makes each look-up of an IPv4 address find the next of these addresses; the last one stays.
func resolveTo(t *testing.T, addresses ...string) {
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			var size uint16
			var m dnsmessage.Message
			binary.Read(far, binary.BigEndian, &size)
			query := make([]byte, size)
			io.ReadFull(far, query)
			if err := m.Unpack(query); err != nil {
				t.Error(err)
				return
			}
			m.Response = true
			if question := m.Questions[0]; question.Type == dnsmessage.TypeA {
				header := dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class}
				m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: netip.MustParseAddr(addresses[0]).As4()}}}
				addresses = addresses[min(1, len(addresses)-1):]
			}
			m.Additionals = nil
			answer, err := m.AppendPack(make([]byte, 2))
			if err != nil {
				t.Error(err)
				return
			}
			binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
			far.Write(answer)
		}()
		return near, nil
	}}
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

func TestOtherNetworksAndInvalidAddressesAreRefused(t *testing.T) {
	t.Parallel()
	everything := dialguard.New(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
	for _, test := range []struct{ network, address string }{
		{"unix", "/socket"}, {"udp", "127.0.0.1:9"}, {"udp4", "127.0.0.1:9"}, {"tcp4", ""}, {"tcp4", "9.9.9.9"},
		{"tcp4", "push.example.org:443"}, {"tcp4", "9.9.9.9:https"}, {"tcp4", "[9.9.9.9]:443"},
	} {
		if err := everything.Control(test.network, test.address, nil); !errors.Is(err, dialguard.ErrRefused) {
			t.Errorf("%v: got error %v", test, err)
		}
	}
}

// An HTTP/2 server can make a client repeat a request without end.
func TestConnectionsUseHTTP1AndAreKept(t *testing.T) {
	t.Parallel()
	const workers, posts = 16, 50
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	client := dialguard.New(loopback).Client(workers)
	defer client.CloseIdleConnections()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for range posts {
				reply, err := client.Post(server.URL, "application/json", strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(reply.Body); err != nil || string(body) != "HTTP/1.1" {
					t.Errorf("got %q, %v", body, err)
				}
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
	sent := 0
	transport, gateway := dialguard.New().Transport(1), sync.WaitGroup{}
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		gateway.Go(func() {
			defer far.Close()
			http.ReadRequest(bufio.NewReader(far))
			_, err := io.WriteString(far, "HTTP/1.1 200 OK\r\n")
			for err == nil && sent < 1<<20 {
				_, err = io.WriteString(far, "X: y\r\n")
				sent += len("X: y\r\n")
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
