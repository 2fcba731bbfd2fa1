package handlers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

// HTTP servers refuse bad escapes, but a host may rewrite the raw path.
func TestABadEscapeInARewrittenPathIsRefused(t *testing.T) {
	t.Parallel()
	const badEscape = "Invalid percent-encoding in the path."
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
