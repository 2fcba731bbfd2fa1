package pusher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
)

func TestAnAddressHasOneForm(t *testing.T) {
	t.Parallel()
	const refused = "" // as a pushkey
	var letters []rune // a label of many different ones takes long to encode
	for r := '\u9fa5'; r >= '\u4e00'; r-- {
		letters = append(letters, r)
	}
	many := "a@" + strings.Repeat(string(letters), 4)
	for address, want := range map[string]struct{ canonical, accepted string }{
		"a@example.org":                {"a@example.org", "a@example.org"},
		"A@Example.ORG":                {"A@example.org", "A@example.org"},
		"a@bücher.example":             {"a@xn--bcher-kva.example", "a@xn--bcher-kva.example"},
		"a@BÜCHER.Example":             {"a@xn--bcher-kva.example", "a@xn--bcher-kva.example"},
		"a@bu\u0308cher.example":       {"a@xn--bcher-kva.example", "a@xn--bcher-kva.example"}, // NFD
		"a@XN--BCHER-KVA.example":      {"a@xn--bcher-kva.example", "a@xn--bcher-kva.example"},
		"a@bücher。example":             {"a@xn--bcher-kva.example", "a@xn--bcher-kva.example"},
		"a@straße.example":             {"a@xn--strae-oqa.example", "a@xn--strae-oqa.example"},
		"Jörg@bücher.example":          {"Jörg@xn--bcher-kva.example", "Jörg@xn--bcher-kva.example"},
		`"a@ü"@Bücher.example`:         {`"a@ü"@xn--bcher-kva.example`, refused}, // quoted without need
		`a@[IPv6:2001:DB8::1]`:         {`a@[ipv6:2001:db8::1]`, refused},
		"a@[192.0.2.1]":                {"a@[192.0.2.1]", "a@[192.0.2.1]"},
		"a@exa\u00admple.org":          {"a@exa\u00admple.org", refused},
		"a@bücher\u202e.example":       {"a@bücher\u202e.example", refused},
		"a@" + strings.Repeat("ü", 64): {"a@" + strings.Repeat("ü", 64), refused},
		"a@ü/x.example":                {"a@ü/x.example", refused},
		"a@ü\r\nRCPT TO:<b@c>":         {"a@ü\r\nRCPT TO:<b@c>", refused},
		"a@b＠evil.example":             {"a@b＠evil.example", refused},
		"a@xn--\u00fc.example":         {"a@xn--\u00fc.example", refused},
		"Bücher":                       {"Bücher", refused},
		"@bücher.example":              {"@xn--bcher-kva.example", refused},
		"a@":                           {"a@", refused},
		"":                             {"", refused},
		many:                           {many, refused},
	} {
		name := address[:min(len(address), 40)]
		key := pusher.Key{AppID: pusher.EmailAppID, Pushkey: address}
		begun := time.Now()
		got := key.Canonical()
		if took := time.Since(begun); got.Pushkey != want.canonical || got != got.Canonical() || took > 5*time.Second {
			t.Errorf("%q: got %q in %v", name, got.Pushkey, took)
		}
		p := pusher.Pusher{Key: key, Kind: pusher.Email, Data: `{}`}
		policy := pusher.DefaultPolicy()
		policy.Email = anyAddress
		if err := policy.Check(p); (err == nil) != (want.accepted != refused) || err == nil && got.Pushkey != want.accepted {
			t.Errorf("%q: the policy says %v", name, err)
		}
		key.AppID = "org.example.app"
		if key.Canonical() != key {
			t.Errorf("%q: the pushkey of another app changes", name)
		}
	}
}

// A canonical address stays one, and has no character that its address does not have, but letters,
// digits, hyphens and dots.
func FuzzCanonicalAddress(f *testing.F) {
	for _, seed := range []string{"a@bücher.example", "a@XN--BCHER-KVA.example", "@", "a@א.xn--0ca", "a@\xff", "a@。", "a@ß.ẞ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		once := pusher.CanonicalAddress(address)
		if again := pusher.CanonicalAddress(once); again != once {
			t.Errorf("%q: got %q, then %q", address, once, again)
		}
		at := strings.LastIndexByte(address, '@') + 1
		if !strings.HasPrefix(once, address[:at]) || strings.ContainsAny(once[at:], "@<>\r\n \"") && !strings.ContainsAny(address[at:], "<>\r\n \"") {
			t.Errorf("%q: got %q", address, once)
		}
	})
}
