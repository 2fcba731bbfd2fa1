package httppush

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/strictjson"
)

const maxAnswerBytes = 64 << 10

var _ module.Gateway = (*Gateway)(nil)

// Gateway sends notifications by HTTP. It is safe for concurrent use.
type Gateway struct{ client, anyPath *http.Client }

// NewGateway needs clients that follow no redirects and refuse addresses that
// are not public, such as dialguard.Guard.Client with as many connections as
// may be in flight. The second one is for [module.GatewayRequest.AnyPath].
func NewGateway(client, anyPath *http.Client) *Gateway { return &Gateway{client, anyPath} }

// Post implements [module.Gateway]. Do not log its errors: they may have the URL.
func (g *Gateway) Post(ctx context.Context, r module.GatewayRequest) (module.GatewayAnswer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return module.GatewayAnswer{}, fmt.Errorf("httppush: post: %w", err)
	}
	request.GetBody = nil // otherwise a server can make the client repeat the request without end
	for name, value := range r.Header {
		request.Header.Set(name, value)
	}
	request.Header.Set("User-Agent", "pushfx")
	client := g.client
	if r.AnyPath {
		client = g.anyPath
	}
	reply, err := client.Do(request)
	if err != nil {
		return module.GatewayAnswer{}, fmt.Errorf("httppush: post: %w", err)
	}
	defer reply.Body.Close()
	answer := module.GatewayAnswer{Status: reply.StatusCode, RetryAfter: readRetryAfter(reply.Header, time.Now())}
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswerBytes+1))
	if err == nil && answer.Status >= 200 && answer.Status < 300 {
		answer.Rejected = readRejected(text)
	}
	return answer, nil // the status is enough
}

// readRejected returns no pushkeys for an invalid body.
func readRejected(text []byte) (rejected []string) {
	if len(text) > maxAnswerBytes || !strictjson.Valid(string(text)) {
		return nil
	}
	w := strictjson.Walk(string(text))
	if w.Next() != '{' {
		return nil
	}
	for name := range w.Object() {
		if name != "rejected" || w.Next() != '[' {
			continue
		}
		for range w.Array() {
			if w.Next() == '"' {
				rejected = append(rejected, w.String())
			}
		}
	}
	return rejected
}

// readRetryAfter reads both forms of Retry-After (RFC 9110, section 10.2.3): seconds, or
// a time, which it compares with the Date of the answer. It returns 0 for a missing or
// invalid header, otherwise at least a second.
func readRetryAfter(header http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if text == "" {
		return 0
	}
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // seconds is the largest number after ErrRange
		return time.Duration(min(max(seconds, 1), uint64(channel.MaxWait/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(header.Get("Date")); err == nil {
		now = sent
	}
	return max(at.Sub(now), channel.MinWait)
}

var header = map[string]string{"Content-Type": "application/json"}
