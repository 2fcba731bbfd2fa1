package handlers

import (
	"context"
	"testing"
)

func TestRequester(t *testing.T) {
	t.Parallel()
	alice := Requester{User: "@alice:example.org", Device: "DEVICE"}
	type key struct{}
	for _, test := range []struct {
		name string
		ctx  context.Context
		want Requester
		ok   bool
	}{
		{"given", WithRequester(context.Background(), alice), alice, true},
		{"without a device", WithRequester(context.Background(), Requester{User: "@as:example.org"}), Requester{User: "@as:example.org"}, true},
		{"none", context.Background(), Requester{}, false},
		{"a foreign key", context.WithValue(context.Background(), key{}, alice), Requester{}, false},
		{"without a user", WithRequester(context.Background(), Requester{Device: "DEVICE"}), Requester{Device: "DEVICE"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, ok := RequesterFrom(test.ctx); got != test.want || ok != test.ok {
				t.Errorf("got %v, %v, want %v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}
