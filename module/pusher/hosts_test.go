package pusher_test

import (
	"encoding/json"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/idna"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
)

const (
	badShape = "invalid_param: data.url must be an absolute https URL with the path /_matrix/push/v1/notify, " +
		"without user info or fragment."
	badName    = "invalid_param: data.url must have a host with a valid domain name."
	oddAddress = "invalid_param: data.url must have an IP address in its usual form."
	notPublic  = "invalid_param: data.url must not have an IP address that is not public."
	localName  = "invalid_param: data.url must not have a host that is local by definition."
)

// hosts has the reason for refusing each host, empty for allowed hosts.
var hosts = map[string]string{
	// Names.
	"push.example.org":                  "",
	"push.example.org.":                 "",
	"PUSH.Example.ORG":                  "",
	"push.example.org:1":                "",
	"gateway":                           "",
	"gateway:5000":                      "",
	"a_b.example.org":                   "",
	"_push._tcp.example.org":            "",
	"r3---sn-apo3qvuoxuxbt.example.org": "",
	"-a-.example.org":                   "",
	"4.example":                         "",
	"1.2.3.4.example":                   "",
	"0x7f.example":                      "",
	"example.0xg":                       "",
	"127.0.0.1.nip.io":                  "",
	"localhost.example.org":             "",
	"notlocalhost":                      "",
	"local.example.org":                 "",
	"arpa":                              "",
	"myhome.arpa":                       "",
	l(63) + ".org":                      "",
	l(63) + "." + l(63) + "." + l(63) + "." + l(61):       "",
	l(63) + "." + l(63) + "." + l(63) + "." + l(61) + ".": "",
	l(63) + "." + l(63) + "." + l(63) + "." + l(62):       badName,
	l(64) + ".org":                    badName,
	"push..example.org":               badName,
	".example.org":                    badName,
	"example.org..":                   badName,
	".":                               badName,
	`a\"b.example.org`:                badName,
	"a b.example.org":                 badShape,
	"a%20b.example.org":               badShape,
	"a%00.example.org":                badShape,
	"%6cocalhost":                     badShape,
	"127%2e0.0.1":                     badShape,
	"a|b.example.org":                 badShape,
	"a:b:1":                           badShape,
	"example.org:-1":                  badShape,
	"user%40example.org@push.example": badShape,

	// International names.
	"push.ex\u00e4mple.org":               "",
	"push.ex%C3%A4mple.org":               "",
	"xn--exmple-cua.org":                  "",
	"XN--EXMPLE-CUA.org":                  "",
	"stra\u00dfe.example":                 "",
	"\u65e5\u672c\u8a9e\u3002jp":          "",
	"\uff50\uff55\uff53\uff48.example":    "",
	"a_b.b\u00fccher.example":             "",
	"\u05d0\u05d1.example":                "",
	"\U0001f4a9.la":                       "",
	"\u0915\u094d\u200d\u0937.example":    "",
	strings.Repeat("\u00e4", 50) + ".org": "",
	strings.Repeat("\u00e4", 60) + ".org": badName,
	"%ff.example":                         badName,
	"local\u00adhost":                     badName,
	"\ufeffa.example":                     badName,
	"\u0308a.example":                     badName,
	"\u05d0a.example":                     badName,
	"\u2100.example":                      badName,
	"a\uff1a80.example":                   badName,
	"\uff0541.example":                    badName,
	"xn--.example":                        badName,
	"xn--a.example":                       badName,
	"xn--localhost-":                      badName,
	"xn--\u00e4.example":                  badName,
	"\u3002example":                       badName,

	// Addresses.
	"9.9.9.9":                     "",
	"9.9.9.9:8448":                "",
	"192.0.1.1":                   "",
	"172.32.0.1":                  "",
	"100.128.0.1":                 "",
	"[2620:fe::fe]":               "",
	"[2620:FE:0:0:0:0:0:FE]:8443": "",
	"[2001:4860:4860::8888]":      "",
	"[2620:fe::9.9.9.9]":          "",
	"10.255.255.255:443":          notPublic,
	"127.0.0.1:8443":              notPublic,
	"169.254.169.254":             notPublic,
	"[0:0:0:0:0:0:0:1]:443":       notPublic,
	"[::127.0.0.1]":               notPublic,
	"[::ffff:127.0.0.1]":          notPublic,
	"[::ffff:7f00:1]":             notPublic,
	"[::FFFF:10.0.0.1]":           notPublic,
	"[::ffff:9.9.9.9]":            notPublic,
	"[::ffff:0:7f00:1]":           notPublic,
	"[64:ff9b::127.0.0.1]":        notPublic,
	"[fe80::1%25eth0]":            notPublic,
	"[2620:fe::fe%25eth0]":        notPublic,
	"2130706433":                  oddAddress,
	"0":                           oddAddress,
	"0177.0.0.1":                  oddAddress,
	"0x7f.1":                      oddAddress,
	"0X7F.0.0.0X1":                oddAddress,
	"0x7f000001":                  oddAddress,
	"0x":                          oddAddress,
	"127.1":                       oddAddress,
	"127.0.1":                     oddAddress,
	"127.0.0.1.":                  oddAddress,
	"9.9.9.9.":                    oddAddress,
	"09.9.9.9":                    oddAddress,
	"256.256.256.256":             oddAddress,
	"1.2.3.4.5":                   oddAddress,
	"example.1":                   oddAddress,
	"example.0x7f":                oddAddress,
	"99999999999999999999":        oddAddress,
	"\uff11\uff12\uff17.\uff10.\uff10.\uff11": oddAddress,
	"%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1":       oddAddress,
	"127\u30020\u30020\u30021":                oddAddress,
	"127.0.0.\u2460":                          oddAddress,
	"\U0001d7cf\U0001d7d0\U0001d7d5.1":        oddAddress,
	"0\uff587f.1":                             oddAddress,
	"127..0.1":                                badName,
	"[127.0.0.1]":                             badShape,
	"[::1":                                    badShape,
	"::1":                                     badShape,
	"[::1]x":                                  badShape,
	"[v1.x]":                                  badShape,
	"[localhost]":                             badShape,
	"[::1%eth0]":                              badShape,

	// Names that are local by definition.
	"localhost":         localName,
	"localhost:8443":    localName,
	"LocalHost.":        localName,
	"push.localhost":    localName,
	"\u24dbocalhost":    localName,
	"%E2%93%9Bocalhost": localName,
	"\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54": localName,
	"loca\u2113host":            localName,
	"localho\u017ft":            localName,
	"localhost\u3002":           localName,
	"printer.local":             localName,
	"local":                     localName,
	"push.corp.internal":        localName,
	"metadata.google.internal.": localName,
	"home.arpa":                 localName,
	"push.HOME.arpa":            localName,
	"push\uff0ehome\uff61arpa":  localName,
}

func l(n int) string { return strings.Repeat("a", n) }

func pusherAt(url string) pusher.Pusher {
	p := phone("key")
	p.Data = `{"url":"` + url + `"}`
	return p
}

func TestPolicyChecksHosts(t *testing.T) {
	for host, want := range hosts {
		got := describe(pusher.DefaultPolicy().Check(pusherAt("https://" + host + pusher.NotifyPath)))
		if got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
	for _, char := range ",*;&='$()<>\u00ad\u200b\u200c\u200d\u202e\u2066\u2060\ufe0f\U000e0101\u3164\u034f\u0085\u2028\u00a0\u0378\ufffd\ue000\u2135\uff0f\uff20" {
		if got := describe(pusher.DefaultPolicy().Check(pusherAt("https://a" + string(char) + "b.example" + pusher.NotifyPath))); got != badName {
			t.Errorf("%U: got %q, want %q", char, got, badName)
		}
	}
}

func TestNoAddressOfASpecialRangeIsAllowed(t *testing.T) {
	for text, rfc := range special {
		prefix := netip.MustParsePrefix(text)
		for _, address := range []netip.Addr{prefix.Addr(), lastOf(prefix)} {
			host := netip.AddrPortFrom(address, 443).String()
			if got := describe(pusher.DefaultPolicy().Check(pusherAt("https://" + host + pusher.NotifyPath))); got != notPublic {
				t.Errorf("%s of %s, %s: got %q", host, text, rfc, got)
			}
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

func TestAllowedPrefixesAllowAddressesAndLocalNames(t *testing.T) {
	for _, test := range []struct {
		allowed string
		hosts   map[string]string
	}{
		{"10.20.0.0/16", map[string]string{
			"10.20.0.1": "", "[::ffff:10.20.0.1]": "", "10.21.0.1": notPublic, "[::ffff:10.21.0.1]": notPublic,
			"[64:ff9b::a14:1]": notPublic, "10.20.1": oddAddress, "10.20.0.1.": oddAddress, "9.9.9.9": "",
			"push.internal": "", "push.local": "", "push.home.arpa": "", "localhost": localName, "push.localhost": localName,
		}},
		{"127.0.0.0/8", map[string]string{"127.0.0.1": "", "localhost": "", "a.localhost": "", "[::1]": notPublic, "0.0.0.0": notPublic}},
		{"::1/128", map[string]string{"[::1]": "", "[::1%25lo]": notPublic, "localhost": "", "127.0.0.1": notPublic}},
		{"fe80::/10", map[string]string{"[fe80::1]": "", "[fe80::1%25eth0]": notPublic, "localhost": localName}},
		{"64:ff9b::/96", map[string]string{"[64:ff9b::909:909]": "", "[::ffff:9.9.9.9]": notPublic}},
		{"::/0", map[string]string{"[fd00::1]": "", "[::ffff:127.0.0.1]": notPublic, "127.0.0.1": notPublic}},
	} {
		policy := pusher.DefaultPolicy()
		policy.AllowedPrefixes = []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix(test.allowed)}
		for host, want := range test.hosts {
			if got := describe(policy.Check(pusherAt("https://" + host + pusher.NotifyPath))); got != want {
				t.Errorf("%s with %s: got %q, want %q", host, test.allowed, got, want)
			}
		}
	}
}

// special are ranges that are not globally reachable, reachable only within an
// organization, or assigned to protocols.
var special = map[string]string{
	"0.0.0.0/8": "RFC 791", "10.0.0.0/8": "RFC 1918", "100.64.0.0/10": "RFC 6598", "127.0.0.0/8": "RFC 1122",
	"169.254.0.0/16": "RFC 3927", "172.16.0.0/12": "RFC 1918", "192.0.0.0/24": "RFC 6890", "192.0.2.0/24": "RFC 5737",
	"192.88.99.0/24": "RFC 7526", "192.168.0.0/16": "RFC 1918", "198.18.0.0/15": "RFC 2544", "198.51.100.0/24": "RFC 5737",
	"203.0.113.0/24": "RFC 5737", "224.0.0.0/4": "RFC 5771", "240.0.0.0/4": "RFC 1112",
	"::/8": "RFC 4291", "64:ff9b::/96": "RFC 6052", "64:ff9b:1::/48": "RFC 8215", "100::/64": "RFC 6666", "2001::/23": "RFC 2928",
	"2001:db8::/32": "RFC 3849", "2002::/16": "RFC 3056", "3fff::/20": "RFC 9637", "5f00::/16": "RFC 9602", "fc00::/7": "RFC 4193",
	"fe80::/10": "RFC 4291", "fec0::/10": "RFC 3879", "ff00::/8": "RFC 4291",
}

// FuzzURL checks accepted URLs with net/url, IDNA and the ranges of the RFCs.
func FuzzURL(f *testing.F) {
	for host := range hosts {
		f.Add("https://"+host+pusher.NotifyPath, false)
		f.Add("HTTP://"+host+pusher.NotifyPath+"?a#b", true)
	}
	for _, text := range []string{
		"", "https://", "//push.example.org" + pusher.NotifyPath, "https:" + pusher.NotifyPath, "ftp://a" + pusher.NotifyPath,
		"https://a@b" + pusher.NotifyPath, "https://a%2F@b" + pusher.NotifyPath, `https://a\@b` + pusher.NotifyPath,
		"https://a/_matrix%2fpush/v1/notify", "https://a/_matrix/push/v1/./notify", "https://a" + pusher.NotifyPath + "?%zz",
		"https://a:0" + pusher.NotifyPath, "https://a:65536" + pusher.NotifyPath, "https://a:" + pusher.NotifyPath,
		"https://a" + pusher.NotifyPath + "?" + strings.Repeat("x", 2048), "https://a\n" + pusher.NotifyPath,
	} {
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, allowHTTP bool) {
		escaped, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		policy := pusher.DefaultPolicy()
		policy.AllowHTTP = allowHTTP
		p := pusherAt("")
		p.Data = `{"url":` + string(escaped) + `}`
		if err := policy.Check(p); err != nil {
			if kind := fault.KindOf(err); kind != fault.InvalidParam {
				t.Errorf("%q: %v of kind %v", text, err, kind)
			}
			return
		}
		text = strings.ToValidUTF8(text, "\ufffd") // as in JSON
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if len(text) > policy.MaxURLBytes || u.User != nil || u.Fragment != "" || strings.ContainsAny(text, "#") ||
			u.EscapedPath() != pusher.NotifyPath || u.Scheme != "https" && !(allowHTTP && u.Scheme == "http") {
			t.Errorf("%q was accepted", text)
		}
		if again, err := url.Parse(u.String()); err != nil || again.Host != u.Host || again.Path != u.Path {
			t.Errorf("%q: written again: %v, %v", text, again, err)
		}
		if port, err := strconv.Atoi(u.Port()); u.Port() != "" && (err != nil || port < 1 || port > 65535) {
			t.Errorf("%q: port %s", text, u.Port())
		}
		checkHostIsPublic(t, u.Hostname())
	})
}

func checkHostIsPublic(t *testing.T, host string) {
	t.Helper()
	name := host
	if !strings.Contains(host, ":") {
		mapped, err := idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.CheckHyphens(false)).ToASCII(host)
		if err != nil {
			t.Errorf("%q: %v", host, err)
		}
		name = strings.ToLower(strings.TrimSuffix(mapped, "."))
	}
	addr, err := netip.ParseAddr(name)
	if lax, ok := inetAton(name); ok && (err != nil || lax != addr) {
		t.Errorf("%q is %v for some resolvers", host, lax)
	}
	if err == nil {
		checkAddrIsPublic(t, host, addr)
		return
	}
	labels := strings.Split(name, ".")
	for i, label := range labels {
		if label == "" || len(label) > 63 || strings.ContainsAny(label, " /\\?#@:%<>[]|\"") {
			t.Errorf("%q: label %d is %q", host, i, label)
		}
	}
	top := labels[len(labels)-1]
	if len(name) > 253 || top == "localhost" || top == "local" || top == "internal" || name == "home.arpa" || strings.HasSuffix(name, ".home.arpa") {
		t.Errorf("%q was accepted", host)
	}
}

func checkAddrIsPublic(t *testing.T, host string, addr netip.Addr) {
	t.Helper()
	for prefix, source := range special {
		if netip.MustParsePrefix(prefix).Contains(addr.WithZone("")) || addr.Zone() != "" {
			t.Errorf("%q was accepted; %s is %s", host, prefix, source)
		}
	}
	if addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() || addr.Is4In6() {
		t.Errorf("%q was accepted", host)
	}
}

// inetAton parses an address like the C library: one to four decimal, octal or
// hexadecimal numbers. The last number fills all remaining bytes.
func inetAton(text string) (netip.Addr, bool) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, part := range parts {
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (4 - i)
		}
		n, err := strconv.ParseUint(part, 0, bits)
		if err != nil || strings.Contains(part, "_") || strings.HasPrefix(part, "0b") || strings.HasPrefix(part, "0o") {
			return netip.Addr{}, false
		}
		sum = sum<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}
