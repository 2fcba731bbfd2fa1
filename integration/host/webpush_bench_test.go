package host

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	webpushgo "github.com/SherClockHolmes/webpush-go"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/pusher"
)

// taken is a push service without a network, for the module and for webpush-go.
type taken struct{}

func (taken) Post(context.Context, module.GatewayRequest) (module.GatewayAnswer, error) {
	return module.GatewayAnswer{Status: http.StatusCreated}, nil
}

func (taken) Do(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusCreated, Body: io.NopCloser(strings.NewReader(""))}, nil
}

const benchBody = `"event_id":"$e","room_id":"!room:example.org","type":"m.room.message","sender":"@bob:example.org","sender_display_name":"Bob","room_name":"Lobby",` +
	`"prio":"high"` + "\x00" + `"content":{"msgtype":"m.text","body":"Lunch?"}`

// The field's library seals and signs the same payload beside the module's. One core: -cpu 1.
func BenchmarkWebPush(b *testing.B) {
	cfg := hosttest.WithWebPush(pushfx.DefaultConfig()).WebPush
	s := hosttest.NewBrowser(b, "app")
	p := pusher.Pusher{Key: pusher.Key{AppID: "app", Pushkey: hosttest.Encode64(s.Key.PublicKey().Bytes())}, Kind: pusher.WebPush, Activated: true,
		Data: `{"url":"https://push.example.org/1","auth":"` + hosttest.Encode64(s.Auth) + `"}`}
	b.Run("pushfx", func(b *testing.B) {
		c := webpush.New(cfg, taken{}, time.Now)
		n := channel.Notification{Notification: module.Notification{Text: "{}\x00" + benchBody}, Meta: content.Meta{Event: "$e", Room: "!room:example.org"}}
		b.ReportAllocs()
		for b.Loop() {
			to := &channel.Target{User: hosttest.Alice, Key: p.Key}
			if !c.Read(p, to) {
				b.Fatal("not read")
			}
			if a := to.Poster.Post(b.Context(), n); a.Outcome != module.Delivered {
				b.Fatal(a)
			}
		}
	})
	b.Run("webpush-go", func(b *testing.B) {
		to := &webpushgo.Subscription{Endpoint: "https://push.example.org/1", Keys: webpushgo.Keys{Auth: hosttest.Encode64(s.Auth), P256dh: p.Pushkey}}
		o := theirOptions(cfg, taken{})
		b.ReportAllocs()
		for b.Loop() {
			reply, err := webpushgo.SendNotification([]byte("{"+strings.Replace(benchBody, "\x00", ",", 1)+"}"), to, o)
			if err != nil {
				b.Fatal(err)
			}
			reply.Body.Close()
		}
	})
}

func theirOptions(cfg webpush.Config, client webpushgo.HTTPClient) *webpushgo.Options {
	return &webpushgo.Options{
		HTTPClient: client, TTL: 60, Subscriber: strings.TrimPrefix(cfg.Subject, "mailto:"), VAPIDPublicKey: cfg.PublicKey(), VAPIDPrivateKey: cfg.Key,
	}
}

// The tests' browser opens what the field's library sends, too.
func TestTheBrowserOfTheTestsOpensOtherPushes(t *testing.T) {
	t.Parallel()
	b := hosttest.NewBrowser(t, "app")
	to := &webpushgo.Subscription{Endpoint: b.URL, Keys: webpushgo.Keys{Auth: hosttest.Encode64(b.Auth), P256dh: hosttest.Encode64(b.Key.PublicKey().Bytes())}}
	reply, err := webpushgo.SendNotification([]byte(`{"a":1}`), to, theirOptions(hosttest.WithWebPush(pushfx.DefaultConfig()).WebPush, http.DefaultClient))
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if p := b.Receive(t); p.Text != `{"a":1}` || !strings.HasPrefix(p.Header.Get("Authorization"), "vapid t=") {
		t.Errorf("got %+v", p)
	}
}
