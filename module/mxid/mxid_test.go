package mxid_test

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/mxid"
)

func TestValidateRefusesInvalidUserIDs(t *testing.T) {
	const sigil, domain, encoding = "user id does not start with @", "user id has no domain", "user id is not valid UTF-8"
	full := "@" + strings.Repeat("a", mxid.MaxUserIDBytes-len("@:example.org")) + ":example.org"
	for name, test := range map[string]struct {
		user mxid.UserID
		want string
	}{
		"a plain one":                 {"@alice:example.org", ""},
		"a port":                      {"@alice:example.org:8448", ""},
		"an IPv6 domain":              {"@alice:[::1]:8448", ""},
		"a historical one":            {"@Al ice/\u00e9\U0001f600:example.org", ""},
		"an empty localpart":          {"@:example.org", ""},
		"as long as can be":           {mxid.UserID(full), ""},
		"one byte longer":             {mxid.UserID(full + "x"), "user id has 256 bytes, at most 255 are allowed"},
		"short in characters only":    {mxid.UserID("@" + strings.Repeat("\u00e9", 127) + ":x"), "user id has 257 bytes, at most 255 are allowed"},
		"empty":                       {"", sigil},
		"no sigil":                    {"alice:example.org", sigil},
		"a room id":                   {"!room:example.org", sigil},
		"a space before the sigil":    {" @alice:example.org", sigil},
		"no domain":                   {"@alice", domain},
		"only the sigil":              {"@", domain},
		"not UTF-8":                   {"@a\xff:example.org", encoding},
		"an encoded surrogate":        {"@a\xed\xa0\x80:example.org", encoding},
		"not UTF-8 within the domain": {"@a:example.\xc3", encoding},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := test.user.Validate(); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
