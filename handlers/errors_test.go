package handlers

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func TestEveryKindHasItsWireError(t *testing.T) {
	t.Parallel()
	want := map[fault.Kind]wireError{
		fault.NotFound:         {404, "M_NOT_FOUND"},
		fault.InvalidParam:     {400, "M_INVALID_PARAM"},
		fault.MissingParam:     {400, "M_MISSING_PARAM"},
		fault.NotJSON:          {400, "M_NOT_JSON"},
		fault.BadJSON:          {400, "M_BAD_JSON"},
		fault.TooLarge:         {413, "M_TOO_LARGE"},
		fault.MissingToken:     {401, "M_MISSING_TOKEN"},
		fault.UnknownToken:     {401, "M_UNKNOWN_TOKEN"},
		fault.Forbidden:        {403, "M_FORBIDDEN"},
		fault.Unrecognized:     {404, "M_UNRECOGNIZED"},
		fault.MethodNotAllowed: {405, "M_UNRECOGNIZED"},
		fault.ServerControlled: {405, "M_BAD_JSON"},
		fault.UnknownAckToken:  {400, "M_UNKNOWN_ACTIVATION_TOKEN"},
		fault.ExpiredAckToken:  {400, "M_EXPIRED_ACTIVATION_TOKEN"},
		fault.Database:         {500, "M_UNKNOWN"},
		fault.Internal:         {500, "M_UNKNOWN"},
		fault.Unavailable:      {503, "M_UNKNOWN"},
	}
	for _, kind := range fault.Kinds() {
		if got, found := wireErrors(kind); !found || got != want[kind] {
			t.Errorf("%s: got %v, %v, want %v", kind, got, found, want[kind])
		}
	}
	if n, m := len(fault.Kinds()), len(want); n != m {
		t.Errorf("there are %d kinds, the test knows %d", n, m)
	}
	if got, found := wireErrors("new"); found || got != (wireError{500, "M_UNKNOWN"}) {
		t.Errorf("an unknown kind: got %v, %v", got, found)
	}
}

func TestErrorReply(t *testing.T) {
	t.Parallel()
	cause := errors.New("secret cause")
	for _, test := range []struct {
		name   string
		err    error
		status int
		body   string
	}{
		{"fault", fault.New(fault.NotFound, "No."), 404, `{"errcode":"M_NOT_FOUND","error":"No."}`},
		{"the cause stays inside", fault.Wrap(fault.Unavailable, "Later.", cause), 503, `{"errcode":"M_UNKNOWN","error":"Later."}`},
		{"wrapped fault", fmt.Errorf("doing: %w", fault.New(fault.TooLarge, "Long.")), 413, `{"errcode":"M_TOO_LARGE","error":"Long."}`},
		{"joined fault", errors.Join(cause, fault.New(fault.BadJSON, "x")), 400, `{"errcode":"M_BAD_JSON","error":"x"}`},
		{"any other error", cause, 500, `{"errcode":"M_UNKNOWN","error":"Internal server error."}`},
		{"quotes and no UTF-8", fault.New(fault.BadJSON, "\"<\xFF\n"), 400, `{"errcode":"M_BAD_JSON","error":"\"<` + "\uFFFD" + `\n"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if status, body := ErrorReply(test.err); status != test.status || string(body) != test.body {
				t.Errorf("got %d %s, want %d %s", status, body, test.status, test.body)
			}
		})
	}
}
