package kinds

import (
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
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
		name, isName := channel.GatewayName(d.Gateway)
		if !ok || !isName || name != d.Gateway || d.Kind != kind || (d.Gateway == channel.MailGateway) != (kind == pusher.Email) {
			t.Errorf("%s: got %+v, %v, %s", kind, d, ok, name)
		}
		if is != kind && !strings.HasPrefix(string(is), "kind-") {
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

type own struct {
	module.Channel
	kind pusher.Kind
}

func (o own) Kind() pusher.Kind { return o.kind }

func TestAHostsChannelHasAKindOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, kind := range []pusher.Kind{"http", "https", "email", "mail", "", "SMS", "a b", "a:b", "twice"} {
		if set, err := New(Options{Own: []module.Channel{own{kind: "twice"}, own{kind: kind}}}); err == nil {
			t.Errorf("%q is taken: %v", kind, set.Kinds())
		}
	}
	set, err := New(Options{Own: []module.Channel{own{kind: "com.example.sms"}}})
	if err != nil || !set.Sends("com.example.sms:// app") || set.Sends("mail://relay m.email") || set.Sends("other:// app") || !set.Sends("https://gw:443 app") {
		t.Errorf("got %v, %v", set.Kinds(), err)
	}
}
