package handlers

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

type unsubscriber struct {
	module.HostService
	tokens *[]string
}

func (u unsubscriber) MailUser(ctx context.Context, token string) (user mxid.UserID, app string, err error) {
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		return "", "", errors.New("no deadline")
	}
	switch token {
	case "good":
		return "@<b>alice:example.org", "<script>alert(1)</script>", nil
	case "no app":
		return "@<b>alice:example.org", "", nil
	}
	return "", "", fault.New(fault.InvalidParam, "bad")
}

func (u unsubscriber) Unsubscribe(_ context.Context, token string) error {
	*u.tokens = append(*u.tokens, token)
	switch token {
	case "good":
		return nil
	case "away":
		return errors.New("the cause")
	}
	return fault.New(fault.InvalidParam, "bad")
}

func TestOnlyAPostStopsMails(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.ErrorLevel)
	var tokens []string
	server := newServer(t, zap.New(core))
	h := Handler(byHeader, zap.NewNop(), server.Pushers(nil), server.Unsubscribe(unsubscriber{tokens: &tokens}))
	for _, test := range []struct {
		request string
		status  int
		page    string // a part of it
		stops   bool
	}{
		{"GET /_matrix/client/v3/pushers/unsubscribe?token=good", 200, `to <bdi>@&lt;b&gt;alice:example.org</bdi>?</h1><p>App: <bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi></p><form method="post"><button>`, false},
		{"GET /_matrix/client/v3/pushers/unsubscribe?token=no+app", 200, `alice:example.org</bdi>?</h1><form method="post"><button>`, false},
		{"GET /_matrix/client/v3/pushers/unsubscribe?token=<script>", 400, "does not work", false},
		{"GET /_matrix/client/v3/pushers/unsubscribe", 400, "does not work", false},
		{"POST /_matrix/client/v3/pushers/unsubscribe?token=good", 200, "no more", true},
		{"POST /_matrix/client/r0/pushers/unsubscribe?token=good", 200, "no more", true},
		{"POST /_matrix/client/v3/pushers/unsubscribe?token=<script>", 400, "does not work", true},
		{"POST /_matrix/client/v3/pushers/unsubscribe", 400, "does not work", true},
		{"POST /_matrix/client/v3/pushers/unsubscribe?token=away", 500, "later", true},
		{"HEAD /_matrix/client/v3/pushers/unsubscribe?token=good", 200, "", false},
		{"DELETE /_matrix/client/v3/pushers/unsubscribe?token=good", 405, "M_UNRECOGNIZED", false},
		{"OPTIONS /_matrix/client/v3/pushers/unsubscribe?token=good", 204, "", false},
		{"POST /_matrix/client/v3/pushers/unsubscribe/?token=good", 404, "", false},
	} {
		before := len(tokens)
		a := answerTo(h, strings.ReplaceAll(test.request, "<script>", "%3Cscript%3E"), "")
		if a.Code != test.status || !strings.Contains(a.Body.String(), test.page) || strings.Contains(a.Body.String(), "<script>") {
			t.Errorf("%s: got %d %s", test.request, a.Code, a.Body)
		}
		if stops := len(tokens) > before; stops != test.stops {
			t.Errorf("%s: it stops mails: %v", test.request, stops)
		}
		if isPage := strings.HasPrefix(a.Header().Get("Content-Type"), "text/html"); isPage && (!strings.HasPrefix(a.Header().Get("Content-Security-Policy"), "default-src 'none'") || a.Header().Get("Referrer-Policy") != "no-referrer") {
			t.Errorf("%s: got the header %v", test.request, a.Header())
		}
	}
	if !slices.Equal(tokens[:3], []string{"good", "good", "<script>"}) {
		t.Errorf("got the tokens %q", tokens)
	}
	entries := logs.All()
	if len(entries) != 1 || entries[0].ContextMap()["error"] != "the cause" {
		t.Errorf("got the log %v", entries)
	}
	if r, _ := http.NewRequest(http.MethodGet, "/_matrix/client/v3/pushers/unsubscribe?token=x", nil); !Owns(r) {
		t.Error("a host without echo does not route the page")
	}
}
