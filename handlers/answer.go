package handlers

import (
	"cmp"
	"net/http"
	"strconv"
	"unsafe"

	"github.com/labstack/echo/v4"
)

// answer is the JSON of a response. Its middle part is stored JSON, sent without a copy.
type answer struct {
	before, json, after string

	status int // 0 for 200
}

// wrap returns an object with one member. The name must not need escapes.
func wrap(name, json string) answer {
	return answer{before: `{"` + name + `":`, json: json, after: "}"}
}

var contentJSON = []string{echo.MIMEApplicationJSON}

// write sends the answer with its length, since net/http sends a long answer in chunks
// otherwise.
func (a answer) write(c echo.Context) error {
	r := c.Response()
	r.Header()[echo.HeaderContentType] = contentJSON
	r.Header()[echo.HeaderContentLength] = []string{strconv.Itoa(len(a.before) + len(a.json) + len(a.after))}
	r.WriteHeader(cmp.Or(a.status, http.StatusOK))
	for _, part := range []string{a.before, a.json, a.after} {
		if part == "" {
			continue
		}
		// A writer does not modify its argument (io.Writer), and copying a large set
		// would cost more than the rest of the request.
		if _, err := r.Write(unsafe.Slice(unsafe.StringData(part), len(part))); err != nil {
			return err
		}
	}
	return nil
}
