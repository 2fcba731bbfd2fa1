package handlers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

func TestPathParam(t *testing.T) {
	t.Parallel()
	const badEscape = "Invalid percent-encoding in the path."
	for _, test := range []struct{ name, sent, want, err string }{
		{"plain", "a", "a", ""},
		{"encoded", "%21a%3Ab", "!a:b", ""},
		{"encoded, no raw path", "%20", " ", ""},
		{"per cent", "100%25", "100%", ""},
		{"decoded once, no raw path", "%2523", "%23", ""},
		{"decoded once, raw path", "%2523%21", "%23!", ""},
		{"slash", "a%2Fb", "a/b", ""},
		{"plus", "a+b", "a+b", ""},
		{"not UTF-8", "%FF", "\xFF", ""},
		{"NUL", "%00", "\x00", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			called := false
			e := echo.New()
			e.GET("/x/:id/y", func(c echo.Context) error {
				called = true
				got, err := pathParam(c, "id")
				if got != test.want || text(err) != test.err {
					t.Errorf("got %q, %v, want %q, %s", got, err, test.want, test.err)
				}
				return nil
			})
			e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/x/"+test.sent+"/y", nil))
			if !called {
				t.Error("not routed")
			}
		})
	}

	// HTTP servers refuse bad escapes, but a host may rewrite the raw path.
	for _, raw := range []string{"%", "%2", "%zz", "a%u0041"} {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.URL.RawPath = "/" + raw
		c := echo.New().NewContext(request, httptest.NewRecorder())
		c.SetParamNames("id")
		c.SetParamValues(raw)
		if got, err := pathParam(c, "id"); got != "" || text(err) != badEscape {
			t.Errorf("%s: got %q, %v, want %s", raw, got, err, badEscape)
		}
	}
}
