package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"
)

// maxBodyBytes limits the request bodies of the host's own endpoints.
const maxBodyBytes = 64 << 10

// readObject decodes a request body, which must be a JSON object, and also returns its bytes. It unwraps echo's
// response: net/http closes the connection after a body that is too large only if it gets its own response.
func readObject(c echo.Context, into any) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, maxBodyBytes))
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit):
		return nil, tooLarge("Request body too large.")
	case err != nil:
		return nil, badRequest("M_NOT_JSON", "The request body did not arrive whole.")
	}
	return body, parseObject(body, into)
}

// parseObject decodes a JSON object into a struct. Null counts as a missing field.
func parseObject(text []byte, into any) error {
	if !json.Valid(text) {
		return badRequest("M_NOT_JSON", "Not valid JSON.")
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return badRequest("M_BAD_JSON", "Must be a JSON object.")
	}
	err := json.Unmarshal(text, into)
	var shape *json.UnmarshalTypeError
	switch {
	case errors.As(err, &shape):
		return badRequest("M_BAD_JSON", "Field '"+shape.Field+"' has the wrong type.")
	case err != nil:
		return badRequest("M_BAD_JSON", "Not what was expected.")
	}
	return nil
}

// pathParam returns a decoded path parameter: echo decodes it only if the URL has no raw path. An empty parameter, or
// one with an unencoded slash, is 404.
func pathParam(c echo.Context, name string) (string, error) {
	value := c.Param(name)
	if value == "" || strings.Contains(value, "/") {
		return "", echo.ErrNotFound
	}
	if c.Request().URL.RawPath == "" {
		return value, nil
	}
	decoded, err := url.PathUnescape(value)
	if err != nil {
		return "", badRequest("M_INVALID_PARAM", "Invalid percent-encoding in the path.")
	}
	return decoded, nil
}
