package kinds

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/pusher"
)

// The kind of a gate is in its name, so that a host leaves the gates of kinds that it does not know.
func TestGatesOfKinds(t *testing.T) {
	t.Parallel()
	for kind, of := range map[pusher.Kind]pusher.Pusher{
		pusher.HTTP:         {Key: pusher.Key{Pushkey: "x"}, Data: `{"url":"https://mail/_matrix/push/v1/notify"}`},
		pusher.Email:        {Key: pusher.Key{Pushkey: "a@example.org"}},
		"com.example.sms":   {Key: pusher.Key{Pushkey: "+49"}, Data: `{"disable_badge_count":true}`},
		"com://example x\n": {Data: `{"url":5}`},
	} {
		of.Kind = kind
		d, ok := Names().Read("@me:h", of)
		is := channel.KindOf(d.Gate())
		if name, isName := channel.GatewayName(d.Gateway); !ok || !isName || name != d.Gateway || is != kind && !strings.HasPrefix(string(is), "kind-") || d.Kind != kind || (d.Gateway == channel.MailGateway) != (kind == pusher.Email) {
			t.Errorf("%s: got %+v, %v, gate %s, %s", kind, d, ok, d.Gate(), is)
		}
	}
	for _, gate := range []string{"mail://example.org m.email", "mail://relay m.email"} { // the first one is of an earlier version
		if channel.KindOf(gate) != pusher.Email {
			t.Errorf("%s is of %s", gate, channel.KindOf(gate))
		}
	}
	if channel.KindOf("long: x") != pusher.HTTP {
		t.Error("a long gate is of another kind")
	}
}
