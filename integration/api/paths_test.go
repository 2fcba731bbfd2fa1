package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

func (s *apiService) exactOwner(t *testing.T) *caller {
	t.Helper()
	c := s.owner(t, hosttest.R0)
	c.exact = true
	return c
}

func (c *caller) sendExact(request, body string) hosttest.Answer {
	c.t.Helper()
	method, path, _ := strings.Cut(request, " ")
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.on.host.URL, "http://"))
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
	return hosttest.Answer{Status: res.StatusCode, Header: res.Header, Body: string(text)}
}

// Every endpoint decodes an id exactly once.
func TestIDsInPaths(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, path, id string }{
		{"room id, encoded", `%21a%3Ab`, `!a:b`},
		{"room id, plain", `!a:b`, `!a:b`},
		{"room id, half encoded", `!a%3ab`, `!a:b`},
		{"per cent at the end", `100%25`, `100%`},
		{"encoded hash", `%2523`, `%23`},
		{"encoded hash beside another escape", `%2523%21`, `%23!`},
		{"encoded bad escape", `%25zz`, `%zz`},
		{"encoded slash, encoded", `a%252Fb`, `a%2Fb`},
		{"plus", `a+b`, `a+b`},
		{"space and question mark", `a%20b%3F`, `a b?`},
		{"ampersand, less-than and quote", `a%26%3Cb%22`, `a&<b\"`},
		{"emoji, encoded", `%F0%9F%98%80`, `😀`},
		{"emoji, plain", `😀`, `😀`},
		{"colon and star", `:kind*`, `:kind*`},
		{"name of an attribute", `enabled`, `enabled`},
		{"replacement character", `%EF%BF%BD`, "\uFFFD"},
		{"1,024 bytes", strings.Repeat("%21", 1024), strings.Repeat("!", 1024)},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.exactOwner(t)
			path := "/pushrules/global/room/" + test.path
			c.takeAll(
				step{"PUT " + path, `{"rule":{"actions":[]}}`, hosttest.Done},
				step{"GET " + path, "", c.rule(`{"rule_id":"` + test.id + `","default":false,"enabled":true,"actions":[]}`)},
				step{"PUT " + path + "/enabled", `{"enabled":false}`, hosttest.Done},
				step{"GET " + path + "/enabled", "", `200 {"enabled":false}`},
				step{"PUT " + path + "/actions", `{"actions":["x"]}`, hosttest.Done},
				step{"GET " + path + "/actions", "", `200 {"actions":["x"]}`},
			)
			want := `"room":[{"rule_id":"` + test.id + `","default":false,"enabled":false,"actions":["x"]}]`
			if !strings.Contains(c.ruleset(), want) {
				t.Errorf("stored is %s\nwant %s in it", c.ruleset(), want)
			}
			c.takeAll(step{"DELETE " + path, "", hosttest.Done}, step{"GET " + path, "", hosttest.RuleMissing})
		})
	}
}

// Reads and changes find no rule with an impossible id, and PUT refuses the id. A rule with the id U+FFFD exists;
// a byte that is not UTF-8 never names it.
func TestImpossibleIDsInPaths(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, test := range []struct{ name, path, put string }{
		{"slash", `a%2Fb`, hosttest.IDInvalid},
		{"slash and an attribute", `a%2fenabled`, hosttest.IDInvalid},
		{"backslash, plain", `a\b`, hosttest.IDInvalid},
		{"NUL", `a%00`, hosttest.IDInvalid},
		{"C1 control character", `%C2%80`, hosttest.IDInvalid},
		{"not UTF-8", `%FF`, hosttest.IDInvalid},
		{"not UTF-8, plain", "\xFF", hosttest.IDInvalid},
		{"overlong slash", `%C0%AF`, hosttest.IDInvalid},
		{"two dots", `..`, hosttest.IDReserved},
		{"dots and a slash", `%2E%2E%2F..`, hosttest.IDReserved},
		{"10,000 bytes", strings.Repeat("a", 10_000), hosttest.Failure(413, "M_TOO_LARGE", "Rule ID longer than 1024 bytes.")},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := s.exactOwner(t)
			c.change(`PUT /pushrules/global/room/a {"actions":[]}`, `PUT /pushrules/global/room/%EF%BF%BD {"actions":[]}`)
			path := "/pushrules/global/room/" + test.path
			c.takeAll(
				step{"PUT " + path, `{"rule":{"actions":[]}}`, test.put},
				step{"GET " + path, "", hosttest.RuleMissing},
				step{"DELETE " + path, "", hosttest.RuleMissing},
				step{"GET " + path + "/enabled", "", hosttest.RuleMissing},
				step{"PUT " + path + "/enabled", `{"enabled":false}`, hosttest.RuleMissing},
				step{"GET " + path + "/actions", "", hosttest.RuleMissing},
				step{"PUT " + path + "/actions", `{"actions":["notify"]}`, hosttest.RuleMissing},
			)
		})
	}
}

// The path is split before it is decoded: an encoded slash never reaches the rule with the id before it. Kind and
// scope are decoded like ids.
func TestEncodedPartsOfPaths(t *testing.T) {
	t.Parallel()
	c := newService(t).exactOwner(t)
	const path = "/pushrules/global/room/!r:x"
	rule := c.rule(`{"rule_id":"!r:x","default":false,"enabled":true,"actions":["notify"]}`)
	c.takeAll(
		step{"PUT " + path, `{"actions":["notify"]}`, hosttest.Done},
		step{"DELETE " + path + "%2Fzzz", "", hosttest.RuleMissing},
		step{"DELETE " + path + "%2F", "", hosttest.RuleMissing},
		step{"GET " + path + "%2Fenabled", "", hosttest.RuleMissing},
		step{"PUT " + path + "%2Fenabled", `{"actions":[],"enabled":false}`, hosttest.IDInvalid},
		step{"PUT " + path + "%2Factions", `{"actions":[]}`, hosttest.IDInvalid},
		step{"GET " + path, "", rule},
		step{"GET /pushrules/global/%72oom/!r:x", "", rule},
		step{"GET /pushrules/%67lobal/room/!r:x", "", rule},
		step{"GET /pushrules/%2567lobal/room/!r:x", "", hosttest.ScopeUnknown},
		step{"GET /pushrules/global%00/room/!r:x", "", hosttest.ScopeUnknown},
		step{"GET /pushrules/global/%2572oom/!r:x", "", hosttest.KindUnknown},
		step{"GET /pushrules/global/room%FF/!r:x", "", hosttest.KindUnknown},
		step{"DELETE /pushrules/global/%72oom/!r:x", "", hosttest.Done},
	)
}

// Paths are not cleaned, collapsed or redirected. [surface] has the other unserved paths.
func TestPathsStayUnchanged(t *testing.T) {
	t.Parallel()
	c := newService(t).exactOwner(t)
	c.change(`PUT /pushrules/global/room/a {"actions":[]}`)
	c.takeAll(
		step{"PUT /pushrules/global/room/a//enabled", `{"enabled":true}`, hosttest.Unrecognized},
		step{"GET /pushrules/global/./a", "", hosttest.KindUnknown},
		step{"GET /pushrules/../room/a", "", hosttest.ScopeUnknown},
		step{"GET /pushrules/./global/", "", hosttest.Unrecognized},
		step{"DELETE /pushrules/global/room/b/../a", "", hosttest.Unrecognized},
	)
	// The HTTP server refuses a bad escape.
	for _, path := range []string{"room/%zz", "room/a%", "room/%u0041", "%zz/a", "room/%zz/enabled"} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if a := c.send(method+" /pushrules/global/"+path, `{"actions":[]}`); a.Status != 400 {
				t.Errorf("%s %s: got %s", method, path, a)
			}
		}
	}
}
