package host

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

func (p *postOffice) withMail(c pushfx.Config) pushfx.Config { return hosttest.WithMail(c, p.address) }

const setMail = `{"kind":"email","app_id":"m.email","pushkey":"` + hosttest.AliceMail + `","app_display_name":"Mail","device_display_name":"` + hosttest.AliceMail + `","lang":"en","data":{}}`

// readEvents are the events that users have read.
type readEvents struct{ upTo *atomic.Int64 }

func (r readEvents) States(_ context.Context, events []module.UserEvent) []module.Result[module.UnreadState] {
	states := make([]module.Result[module.UnreadState], len(events))
	for i, e := range events {
		states[i].Value.IsRead = e.Position <= r.upTo.Load()
	}
	return states
}

func at(e module.Event, position int64) module.Event {
	e.Position = position
	return e
}

func TestAMailIsSentReadAndUnsubscribed(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *postOffice, redis.UniversalClient, readEvents) (*pushfx.Push, func(method, path, body string) (int, string)){
		"with fx": func(t *testing.T, p *postOffice, client redis.UniversalClient, read readEvents) (push *pushfx.Push, do func(method, path, body string) (int, string)) {
			h := hosttest.StartHost(t, client, pushfx.Delivery, fx.Decorate(p.withMail), fx.Supply(fx.Annotate(read, fx.As(new(module.Unread)))), fx.Populate(&push))
			return push, func(method, path, body string) (int, string) {
				a := h.Do(hosttest.Alice, method, path, body)
				return a.Status, a.Body
			}
		},
		"without fx": func(t *testing.T, p *postOffice, client redis.UniversalClient, read readEvents) (*pushfx.Push, func(method, path, body string) (int, string)) {
			push, err := pushfx.New(client, p.withMail(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{Unread: read}})
			if err != nil {
				t.Fatal(err)
			}
			hosttest.StartPush(t, push)
			return push, handlerCaller(push)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, read := startPostOffice(t, "smtp"), readEvents{new(atomic.Int64)}
			t.Cleanup(func() { hosttest.Eventually(t, "the stopped host closes its connections", p.isQuiet) })
			_, client := hosttest.Embedded(t)
			push, do := start(t, p, client, read)
			set := func() {
				if status, answer := do(http.MethodPost, hosttest.V3+"/pushers/set", setMail); status != http.StatusOK {
					t.Fatalf("got %d %s", status, answer)
				}
			}
			pushers := func() int {
				list, err := push.Pushers.List(t.Context(), hosttest.Alice)
				if err != nil {
					t.Fatal(err)
				}
				return list.Len()
			}
			notify := func(n int) {
				if err := hosttest.SendEvent(t.Context(), push.Notifier, at(hosttest.Message(n), int64(n)), hosttest.Alice, hosttest.Bob); err != nil {
					t.Fatal(err)
				}
			}
			set()
			notify(1)
			notify(2)
			first := receive(t, p)
			if first.To[0] != hosttest.AliceMail || !strings.HasPrefix(first.Sender, "bounces+") || !strings.Contains(first.Text, "    1") || !strings.Contains(first.HTML, "2") {
				t.Errorf("got %+v", first)
			}

			read.upTo.Store(3)
			notify(3) // is read: no mail
			link, _ := url.Parse(first.Unsubscribe)
			if status, page := do(http.MethodGet, link.RequestURI(), ""); status != http.StatusOK || !strings.Contains(page, "<button>") || pushers() != 1 {
				t.Errorf("got %d %s, %d pushers", status, page, pushers())
			}
			notify(4)
			if text := receive(t, p).Text; strings.Contains(text, "    3\r\n") || !strings.Contains(text, "    4\r\n") {
				t.Errorf("got %s", text)
			}
			for range 2 {
				if status, page := do(http.MethodPost, link.RequestURI(), "List-Unsubscribe=One-Click"); status != http.StatusOK || pushers() != 0 {
					t.Errorf("got %d %s, %d pushers", status, page, pushers())
				}
			}
			set()
			token := strings.TrimSuffix(strings.TrimPrefix(first.Sender, "bounces+"), "@example.org")
			if err := push.Host.MailBounced(t.Context(), token); err != nil || pushers() != 0 {
				t.Errorf("got %v, %d pushers", err, pushers())
			}
			set()
			notify(5)
			receive(t, p)
		})
	}
}

func handlerCaller(push *pushfx.Push) func(method, path, body string) (int, string) {
	h := push.Handler(func(*http.Request) (handlers.Requester, error) { return handlers.Requester{User: hosttest.Alice}, nil })
	return func(method, path, body string) (int, string) {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
		return answer.Code, answer.Body.String()
	}
}

func receive(t *testing.T, p *postOffice) letter {
	t.Helper()
	select {
	case got := <-p.inbox:
		return got
	case <-time.After(hosttest.Never):
		t.Fatal("no mail arrives")
		return letter{}
	}
}

// mailer is a host's own.
type mailer struct{ sent chan module.Mail }

func (m mailer) SendMail(_ context.Context, mail module.Mail) error { m.sent <- mail; return nil }

type composer struct{}

func (composer) ComposeMail(d module.MailDigest) (module.Mail, error) {
	return module.Mail{To: d.To, Subject: "mine"}, nil
}

func TestAHostReplacesTheMailerAndTheComposer(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	mine := mailer{make(chan module.Mail, 1)}
	var push *pushfx.Push
	hosttest.StartHost(t, client, pushfx.Delivery,
		fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c.Delivery.Mail.Delay = time.Second
			c.PusherPolicy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
			return c
		}),
		fx.Replace(fx.Annotate(mine, fx.As(new(module.Mailer))), fx.Annotate(composer{}, fx.As(new(module.MailComposer)))), fx.Populate(&push))
	p := pusher.Pusher{Key: pusher.Key{AppID: pusher.EmailAppID, Pushkey: hosttest.AliceMail}, Kind: pusher.Email, Lang: "en", Data: "{}"}
	if err := push.Pushers.Set(t.Context(), hosttest.Alice, p, pusher.KeepOthers); err != nil {
		t.Fatal(err)
	}
	if err := hosttest.SendEvent(t.Context(), push.Notifier, hosttest.Message(1), hosttest.Alice); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-mine.sent:
		if got.Subject != "mine" || got.To != hosttest.AliceMail {
			t.Errorf("got %+v", got)
		}
	case <-time.After(hosttest.Never):
		t.Fatal("no mail")
	}
}

func TestMailThatCannotWorkStopsTheStart(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	p := &postOffice{address: "127.0.0.1:1"}
	for name, test := range map[string]struct {
		change  func(*pushfx.Config)
		options []fx.Option
		want    string
	}{
		"no PusherPolicy.Email": {func(c *pushfx.Config) { c.PusherPolicy.Email = nil }, []fx.Option{pushfx.Delivery}, "mail needs Config.PusherPolicy.Email"},
		"no delivery":           {func(*pushfx.Config) {}, nil, "Config.SMTP needs delivery"},
		"no key":                {func(c *pushfx.Config) { c.Mail.Key = "hush" }, []fx.Option{pushfx.Delivery}, "Config.Mail.Key has 4 bytes"},
		"no From":               {func(c *pushfx.Config) { c.SMTP.From = "" }, []fx.Option{pushfx.Delivery}, "Config.SMTP.From is"},
		"a Mailer without texts": {func(c *pushfx.Config) { c.SMTP.URL, c.Mail = "", mail.Config{} },
			[]fx.Option{pushfx.Delivery, fx.Replace(fx.Annotate(mailer{}, fx.As(new(module.Mailer))))}, "a Mailer needs Config.Mail"},
		"a Mailer and an incomplete address": {func(c *pushfx.Config) { c.SMTP.URL, c.Mail.PublicURL = "", "http://public.example.org/?a=b" },
			[]fx.Option{pushfx.Delivery, fx.Replace(fx.Annotate(mailer{}, fx.As(new(module.Mailer))))}, `Config.Mail.PublicURL is "http://public.example.org/?a=b", want`},
		"a Mailer, no key, and an incomplete address": {func(c *pushfx.Config) { c.SMTP.URL, c.Mail.Key, c.Mail.ClientURL = "", "", "app.example.org" },
			[]fx.Option{pushfx.Delivery, fx.Replace(fx.Annotate(mailer{}, fx.As(new(module.Mailer))))}, `Config.Mail.ClientURL is "app.example.org", want`},
		"a Mailer and a MailComposer, and no key": {func(c *pushfx.Config) { c.SMTP.URL, c.Mail.Key = "", "" },
			[]fx.Option{pushfx.Delivery, fx.Replace(fx.Annotate(mailer{}, fx.As(new(module.Mailer))), fx.Annotate(composer{}, fx.As(new(module.MailComposer))))},
			"Config.Mail.Key has 0 bytes"},
		"one field, and no server": {func(c *pushfx.Config) { c.SMTP.URL, c.Mail = "", mail.Config{Templates: os.DirFS("../operations")} },
			[]fx.Option{pushfx.Delivery}, "Config.Mail.AppName is empty"},
		"a folder without templates": {func(c *pushfx.Config) { c.Mail.Templates = os.DirFS("none") }, []fx.Option{pushfx.Delivery}, "mail: Templates: "},
		"all of it":                  {func(*pushfx.Config) {}, []fx.Option{pushfx.Delivery}, ""},
	} {
		app := hosttest.Startable(client, append(test.options, fx.Decorate(func(c pushfx.Config) pushfx.Config {
			c = p.withMail(c)
			test.change(&c)
			return c
		}))...)
		if err := app.Err(); (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	h := hosttest.StartHost(t, client, pushfx.Delivery)
	if a := h.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/set", setMail); a.Status != http.StatusBadRequest || !strings.Contains(a.Body, "this server sends no email") {
		t.Errorf("without mail, a pusher of kind email gets %d %s", a.Status, a.Body)
	}
	if a := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers/unsubscribe?token=x", ""); a.Status != http.StatusNotFound {
		t.Errorf("without mail, the page is there: %d %s", a.Status, a.Body)
	}
}

// Synapse stores no language, profile tag and device for the pushers that it sets itself at a registration.
func TestEmailPushersOfSynapseMoveIn(t *testing.T) {
	t.Parallel()
	for name, former := range map[string]pusher.Pusher{
		"of a client":       {Lang: "en-GB", Data: `{"brand":"Element"}`, Device: "PHONE", Extra: []pusher.Member{pusher.ProfileTag("")}},
		"of a registration": {Data: "{}", Extra: []pusher.Member{pusher.ProfileTag("")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			former.Key, former.Kind = pusher.Key{AppID: "m.email", Pushkey: hosttest.AliceMail}, pusher.Email
			former.AppDisplayName, former.DeviceDisplayName = "Email Notifications", hosttest.AliceMail
			others := former
			others.Pushkey = "bob@example.com"
			p := startPostOffice(t, "smtp")
			_, client := hosttest.Embedded(t)
			source := &formerServer{users: map[mxid.UserID]module.Import{hosttest.Alice: {Pushers: []pusher.Pusher{others, former}}}}
			var push *pushfx.Push
			h := hosttest.StartHost(t, client, pushfx.Delivery, fx.Decorate(p.withMail), source.option(), fx.Populate(&push))
			if got := h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushers", "").Body; strings.Count(got, `"app_id"`) != 1 || !strings.Contains(got, `"data":`+former.Data) {
				t.Errorf("got %s", got)
			}
			if err := hosttest.SendEvent(t.Context(), push.Notifier, hosttest.Message(1), hosttest.Alice); err != nil {
				t.Fatal(err)
			}
			if got := receive(t, p); got.To[0] != hosttest.AliceMail {
				t.Errorf("got %+v", got)
			}
		})
	}
}
