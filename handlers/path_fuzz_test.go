package handlers

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

type asked struct {
	module.RuleService
	rules *[]string
}

func (a asked) Rule(_ context.Context, _ mxid.UserID, kind pushrule.Kind, id string) (pushrule.Rule, error) {
	*a.rules = append(*a.rules, string(kind)+" "+id)
	return pushrule.Rule{ID: id}, nil
}

// Every path's rule id is decoded exactly once, and no invalid id reaches the service.
func FuzzPathID(f *testing.F) {
	for _, segment := range []string{
		"a", "%21a%3Ab", "100%25", "%2523", "%2F", "a%2fb", "a/b", "..", ".", "%2e%2e", "a%", "%zz", "%00", "%ff", "a%20b", "a+b",
		"a?b", "a;b", ":kind", "*", "%F0%9F%98%80", "😀", "enabled", "", "//", "a//", "\\", "%5C", "a%0Ab", "@a:b", "%3F", "%23", "a&b=c",
	} {
		f.Add(segment)
	}
	var rules []string
	group := newServer(f, zap.NewNop()).PushRules(asked{rules: &rules})
	e := echo.New()
	group.Register(e.Group("/_matrix/client/v3"), V3, asAlice)
	f.Fuzz(func(t *testing.T, segment string) {
		line := "GET " + allRules + "global/room/" + segment + " HTTP/1.1\r\nHost: x\r\n\r\n"
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		if err != nil || strings.ContainsAny(segment, "\r\n") {
			return // no request
		}
		rules = nil
		answer := httptest.NewRecorder()
		e.ServeHTTP(answer, request)
		if answer.Code >= 500 || answer.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("%q: got %d %s", segment, answer.Code, answer.Body)
		}
		raw, _, _ := strings.Cut(segment, "?")
		id, err := url.PathUnescape(raw)
		isID := err == nil && raw != "" && !strings.Contains(raw, "/")
		switch {
		case isID && (len(rules) != 1 || rules[0] != "room "+id):
			t.Errorf("%q: asked for %q, want the id %q", segment, rules, id)
		case !isID && answer.Code < 400 && !strings.HasSuffix(raw, "/enabled") && !strings.HasSuffix(raw, "/actions"):
			t.Errorf("%q: got %d %s", segment, answer.Code, answer.Body)
		case !isID && len(rules) != 0:
			t.Errorf("%q: asked for %q", segment, rules)
		}
	})
}

// Enabled and actions have longer paths.
func (a asked) Enabled(context.Context, mxid.UserID, pushrule.Kind, string) (bool, error) {
	return true, nil
}
