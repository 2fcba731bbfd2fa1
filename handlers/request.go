package handlers

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/strictjson"
)

// pathParam returns a decoded path parameter. Echo returns it encoded if the URL has a
// raw path, and decoded otherwise.
func pathParam(c echo.Context, name string) (string, error) {
	value := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return value, nil
	}
	decoded, err := url.PathUnescape(value)
	if err != nil {
		return "", fault.New(fault.InvalidParam, "Invalid percent-encoding in the path.")
	}
	return decoded, nil
}

// pathRule returns the kind and the rule ID in the path. The kind may be unknown.
func pathRule(c echo.Context) (kind pushrule.Kind, id string, err error) {
	segment, err := pathParam(c, "kind")
	if err != nil {
		return "", "", err
	}
	id, err = pathParam(c, "ruleId")
	return pushrule.Kind(segment), id, err
}

// pathKnownRule is pathRule for endpoints that refuse an unknown kind.
func pathKnownRule(c echo.Context) (kind pushrule.Kind, id string, err error) {
	kind, id, err = pathRule(c)
	if err == nil && !kind.Valid() {
		err = pushrule.ErrUnknownKind
	}
	return kind, id, err
}

func query(c echo.Context) (url.Values, error) {
	values, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, fault.New(fault.InvalidParam, "Invalid query string.")
	}
	return values, nil
}

type body struct {
	text string
	err  error // request.parse returns it, after the checks of the path
}

// readBody reads the body of a PUT or POST within the limits of size and depth.
func (s *Server) readBody(c echo.Context) body {
	if method := c.Request().Method; method != http.MethodPut && method != http.MethodPost {
		return body{}
	}
	// MaxBytesReader needs net/http's own writer: with echo's, it cannot make the server
	// close the connection after too many bytes.
	sent, err := readAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, s.cfg.MaxBodyBytes), c.Request().ContentLength)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return body{err: fault.New(fault.TooLarge, "Request body too large.")}
	case err != nil:
		return body{err: fault.Wrap(fault.NotJSON, "The request body did not arrive whole.", err)}
	}
	text := string(sent)
	if strictjson.Depth(text) > s.cfg.MaxJSONDepth {
		return body{err: fault.New(fault.NotJSON, "Not valid JSON: nested too deep")}
	}
	return body{text: text}
}

// readAll is [io.ReadAll] with a buffer of the expected size, unless that is large.
func readAll(r io.Reader, expected int64) ([]byte, error) {
	const little = 4 << 10
	if expected < 0 || expected > little {
		return io.ReadAll(r)
	}
	b := bytes.NewBuffer(make([]byte, 0, expected+bytes.MinRead))
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}

func (r request) parse(read func(*strictjson.Reader) error) error {
	if r.body.err != nil {
		return r.body.err
	}
	return read(strictjson.NewReader(r.body.text))
}
