package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// raw sends a request whose path goes onto the wire byte for byte.
func (c *caller) raw(request, body string) answer {
	c.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.on.host.url, "http://"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		method, c.prefix, path, c.user, len(body), body)
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("%s: %v", request, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// takeRaw is [caller.takeAll] for paths that go onto the wire byte for byte.
func (c *caller) takeRaw(steps ...step) {
	c.t.Helper()
	for _, s := range steps {
		before := c.stored()
		got := c.raw(s.request, s.body)
		if got.String() != s.want {
			c.t.Errorf("%.200s\n got %s\nwant %s", s.request, got, s.want)
		}
		if after := c.stored(); got.status != 200 && after != before {
			c.t.Errorf("%s was refused and changed what is stored\nfrom %s\n  to %s", s.request, before, after)
		}
	}
}

// An id is decoded exactly once, on every endpoint that has one.
func TestIDsInPaths(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, path, id string }{
		{"room id, encoded", `%21a%3Ab`, `!a:b`},
		{"room id, plain", `!a:b`, `!a:b`},
		{"room id, half encoded", `!a%3Ab`, `!a:b`},
		{"room id, lower case escapes", `%21a%3ab`, `!a:b`},
		{"user id, encoded", `%40a%3Ab`, `@a:b`},
		{"hash", `%23`, `#`},
		{"per cent", `%25`, `%`},
		{"per cent at the end", `100%25`, `100%`},
		{"encoded hash", `%2523`, `%23`},
		{"encoded hash beside another escape", `%2523%21`, `%23!`},
		{"encoded hash beside a plain character", `%2523!`, `%23!`},
		{"twice encoded hash", `%252523`, `%2523`},
		{"encoded bad escape", `%25zz`, `%zz`},
		{"encoded slash, encoded", `a%252Fb`, `a%2Fb`},
		{"plus", `a+b`, `a+b`},
		{"plus, encoded", `a%2Bb`, `a+b`},
		{"space", `a%20b`, `a b`},
		{"question mark", `a%3Fb`, `a?b`},
		{"semicolon and equals", `a;b=c`, `a;b=c`},
		{"colon and star", `:kind*`, `:kind*`},
		{"ampersand and less-than", `a%26%3Cb`, `a&<b`},
		{"quote", `a%22b`, `a\"b`},
		{"emoji, encoded", `%F0%9F%98%80`, `😀`},
		{"emoji, plain", `😀`, `😀`},
		{"accent, composed and not", `%C3%A9e%CC%81`, "\u00e9e\u0301"},
		{"unreserved, encoded", `%61%62`, `ab`},
		{"dots within", `a..b.`, `a..b.`},
		{"name of an attribute", `enabled`, `enabled`},
		{"name of an attribute, encoded", `%65nabled`, `enabled`},
		{"no-break space", `%C2%A0`, "\u00a0"},
		{"replacement character", `%EF%BF%BD`, "\uFFFD"},
		{"1,024 bytes", strings.Repeat("%21", 1024), strings.Repeat("!", 1024)},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				path := "/pushrules/global/room/" + test.path
				c.takeRaw(
					step{"PUT " + path, `{"rule":{"actions":[]}}`, done},
					step{"GET " + path, "", c.rule(`{"rule_id":"` + test.id + `","default":false,"enabled":true,"actions":[]}`)},
					step{"PUT " + path + "/enabled", `{"enabled":false}`, done},
					step{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
					step{"PUT " + path + "/actions", `{"actions":["x"]}`, done},
					step{"GET " + path + "/actions", "", `200 {"actions":["x"]}`},
				)
				want := `"room":[{"rule_id":"` + test.id + `","default":false,"enabled":false,"actions":["x"]}]`
				if !strings.Contains(c.ruleset(), want) {
					t.Errorf("stored is %s\nwant %s in it", c.ruleset(), want)
				}
				c.takeRaw(
					step{"DELETE " + path, "", done},
					step{"GET " + path, "", ruleMissing},
				)
			})
		})
	}
}

// Ids that no rule can have: reads and changes find none, PUT refuses them.
func TestImpossibleIDsInPaths(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tooLong := failure(413, "M_TOO_LARGE", "Rule ID longer than 1024 bytes.")
	for _, test := range []struct{ name, path, put string }{
		{"slash", `a%2Fb`, idInvalid},
		{"slash, lower case", `a%2fb`, idInvalid},
		{"only a slash", `%2F`, idInvalid},
		{"slash and an attribute", `a%2Fenabled`, idInvalid},
		{"backslash", `a%5Cb`, idInvalid},
		{"backslash, plain", `a\b`, idInvalid},
		{"NUL", `a%00`, idInvalid},
		{"line break", `%0D%0A`, idInvalid},
		{"delete", `%7F`, idInvalid},
		{"C1 control character", `%C2%80`, idInvalid},
		{"not UTF-8", `%FF`, idInvalid},
		{"not UTF-8, plain", "a\xFF", idInvalid},
		{"overlong slash", `%C0%AF`, idInvalid},
		{"surrogate", `%ED%A0%80`, idInvalid},
		{"dot", `.`, idReserved},
		{"two dots", `..`, idReserved},
		{"two dots, encoded", `%2E%2E`, idReserved},
		{"dots and a slash", `..%2F..`, idReserved},
		{"10,000 bytes", strings.Repeat("a", 10_000), tooLong},
		{"10,000 emoji, encoded", strings.Repeat("%F0%9F%98%80", 10_000), tooLong},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBothPrefixes(t, func(t *testing.T, prefix string) {
				c := s.owner(t, prefix)
				c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
				path := "/pushrules/global/room/" + test.path
				c.takeRaw(
					step{"PUT " + path, `{"rule":{"actions":[]}}`, test.put},
					step{"PUT " + path, `{"actions":[]}`, test.put},
					step{"GET " + path, "", ruleMissing},
					step{"DELETE " + path, "", ruleMissing},
					step{"GET " + path + "/enabled", "", ruleMissing},
					step{"PUT " + path + "/enabled", `{"enabled":false}`, ruleMissing},
					step{"GET " + path + "/actions", "", ruleMissing},
					step{"PUT " + path + "/actions", `{"actions":[]}`, ruleMissing},
				)
			})
		})
	}
}

// The path is split before it is decoded: an encoded slash never reaches the
// rule whose id stands before it.
func TestEncodedSlashReachesNoOtherRule(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const path = "/pushrules/global/room/!r:x"
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		c.takeRaw(step{"PUT " + path, `{"actions":["notify"]}`, done})
		c.takeRaw(
			step{"DELETE " + path + "%2Fzzz", "", ruleMissing},
			step{"DELETE " + path + "%2F", "", ruleMissing},
			step{"GET " + path + "%2Fenabled", "", ruleMissing},
			step{"GET " + path + "%2Factions", "", ruleMissing},
			step{"PUT " + path + "%2Fenabled", `{"actions":[],"enabled":false}`, idInvalid},
			step{"PUT " + path + "%2Factions", `{"actions":[]}`, idInvalid},
			step{"GET " + path, "", c.rule(`{"rule_id":"!r:x","default":false,"enabled":true,"actions":["notify"]}`)},
		)
		if a := c.raw("PUT "+path+"%2Fenabled", `{"enabled":false}`); a.status != 400 {
			t.Errorf("got %s", a)
		}
		c.takeRaw(step{"GET " + path + "/enabled", "", `200 {"enabled":true}`})
	})
}

// Kind and scope are decoded as ids are.
func TestKindAndScopeInPaths(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
		rule := c.rule(`{"rule_id":"a","default":false,"enabled":true,"actions":[]}`)
		c.takeRaw(
			step{"GET /pushrules/global/%72oom/a", "", rule},
			step{"GET /pushrules/%67lobal/room/a", "", rule},
			step{"GET /pushrules/%2567lobal/room/a", "", scopeUnknown},
			step{"GET /pushrules/global%00/room/a", "", scopeUnknown},
			step{"GET /pushrules/global/%2572oom/a", "", kindUnknown},
			step{"GET /pushrules/global/room%FF/a", "", kindUnknown},
			step{"PUT /pushrules/global/%72oom/a", `{"actions":["x"]}`, done},
			step{"DELETE /pushrules/global/%72oom/a", "", done},
		)
	})
}

// Nothing is cleaned, collapsed or redirected.
func TestPathsAreTakenAsTheyAre(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
		c.takeRaw(
			step{"GET /pushrules//", "", unrecognized},
			step{"GET /pushrules//global/", "", unrecognized},
			step{"GET /pushrules/global//", "", unrecognized},
			step{"GET /pushrules/global//a", "", unrecognized},
			step{"GET /pushrules//room/a", "", unrecognized},
			step{"GET /pushrules/global/room//", "", unrecognized},
			step{"GET /pushrules/global/room//a", "", unrecognized},
			step{"GET /pushrules/global/room//enabled", "", unrecognized},
			step{"PUT /pushrules/global/room//enabled", `{"enabled":true}`, unrecognized},
			step{"PUT /pushrules/global/room//actions", `{"actions":[]}`, unrecognized},
			step{"GET /pushrules/global/room/", "", unrecognized},
			step{"PUT /pushrules/global/room/", `{"actions":[]}`, unrecognized},
			step{"DELETE /pushrules/global/room/", "", unrecognized},
			step{"DELETE /pushrules/global/room/a/", "", unrecognized},
			step{"GET /pushrules/global/room/a/enabled/", "", unrecognized},
			step{"PUT /pushrules/global/room/a//enabled", `{"enabled":true}`, unrecognized},
			step{"GET /pushrules/global/./a", "", kindUnknown},
			step{"GET /pushrules/../room/a", "", scopeUnknown},
			step{"GET /pushrules/./global/", "", unrecognized},
			step{"GET /pushrules/global/..", "", unrecognized},
			step{"GET /pushrules/global/room/a/..", "", unrecognized},
			step{"DELETE /pushrules/global/room/b/../a", "", unrecognized},
			step{"GET /pushrules/global/room/x/../a/enabled", "", unrecognized},
			step{"GET /pushrules/device/room/a/enabled", "", unrecognized},
			step{"GET /pushrules/device/room/a/b/c", "", unrecognized},
			step{"GET /pushrules/device/room/a/", "", unrecognized},
			step{"PUT /pushrules/device/room/a/enabled", `{"enabled":true}`, unrecognized},
			step{"GET /pushers/", "", unrecognized},
			step{"GET /pushers//set", "", unrecognized},
			step{"POST /pushers/set/", pusherWith(), unrecognized},
		)
	})
}

// A bad escape does not get past the HTTP server.
func TestBadEscapeInPath(t *testing.T) {
	t.Parallel()
	s := newService(t)
	onBothPrefixes(t, func(t *testing.T, prefix string) {
		c := s.owner(t, prefix)
		for _, path := range []string{"room/%zz", "room/a%", "room/%2", "room/%u0041", "%zz/a", "room/%zz/enabled"} {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				if a := c.raw(method+" /pushrules/global/"+path, `{"actions":[]}`); a.status != 400 {
					t.Errorf("%s %s: got %s", method, path, a)
				}
			}
		}
	})
}
