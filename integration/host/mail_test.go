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
	"github.com/pushfx/pushfx/module/mail/smtp"
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
			c.Mail.Sending.Delay = time.Second
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

// mailHost is a host with mail, of which one thing is wrong.
type mailHost struct {
	cfg        pushfx.Config
	noDelivery bool
	mailer     module.Mailer       // its own
	composer   module.MailComposer // its own
}

// parts are the host's options without fx.
func (h mailHost) parts() pushfx.Options {
	if h.noDelivery {
		return pushfx.Options{}
	}
	return pushfx.Options{Delivery: &pushfx.DeliveryOptions{Mailer: h.mailer, MailComposer: h.composer}}
}

// options are the host's options with fx.
func (h mailHost) options() []fx.Option {
	options := []fx.Option{fx.Decorate(func(pushfx.Config) pushfx.Config { return h.cfg })}
	if !h.noDelivery {
		options = append(options, pushfx.Delivery)
	}
	if h.mailer != nil {
		options = append(options, fx.Replace(fx.Annotate(h.mailer, fx.As(new(module.Mailer)))))
	}
	if h.composer != nil {
		options = append(options, fx.Replace(fx.Annotate(h.composer, fx.As(new(module.MailComposer)))))
	}
	return options
}

func TestMailThatCannotWorkStopsTheStart(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	ownMailer := func(h *mailHost) { h.mailer, h.cfg.Mail.Server = mailer{}, smtp.DefaultConfig() }
	noMail := func(h *mailHost) { h.cfg.Mail = pushfx.DefaultConfig().Mail }
	for name, test := range map[string]struct {
		change func(*mailHost)
		want   []string // in the error; none: the host starts
	}{
		"all of it":          {func(*mailHost) {}, nil},
		"a Mailer and texts": {ownMailer, nil},
		"a Mailer and a MailComposer": {func(h *mailHost) {
			ownMailer(h)
			h.composer, h.cfg.Mail.Texts = composer{}, mail.Config{}
		}, nil},
		"only the page that stops mails": {func(h *mailHost) {
			h.cfg.Mail.Server, h.cfg.Mail.Sending = smtp.DefaultConfig(), pushfx.DefaultConfig().Mail.Sending
		}, nil},

		"many faults at once": {func(h *mailHost) {
			h.cfg.Mail.Server.From, h.cfg.Mail.Texts.Key, h.cfg.Mail.Sending.Repeat, h.cfg.PusherPolicy.Email = "", "hush", 25*time.Hour, nil
		}, []string{"Config.Mail.Server.From is", "Config.Mail.Texts.Key has 4 bytes", "Config.Mail.Sending.Repeat is 25h0m0s", "Config.PusherPolicy.Email is nil"}},
		"no texts":                   {func(h *mailHost) { h.cfg.Mail.Texts = mail.Config{} }, []string{"Config.Mail.Texts.AppName is empty", "Config.Mail.Texts.Key has 0 bytes"}},
		"a folder without templates": {func(h *mailHost) { h.cfg.Mail.Texts.Templates = os.DirFS("none") }, []string{"mail: Templates: "}},
		"notifications that expire": {func(h *mailHost) { h.cfg.Mail.Sending.Repeat, h.cfg.Delivery.MaxAge = time.Hour, time.Hour },
			[]string{"Config.Mail.Sending.Delay and Repeat are 1s and 1h0m0s"}},
		"no delivery":              {func(h *mailHost) { h.noDelivery = true }, []string{"Config.Mail.Server and .Sending need delivery: include pushfx.Delivery"}},
		"a server without its URL": {func(h *mailHost) { h.cfg.Mail.Server.URL = "" }, []string{"Config.Mail.Server.URL is empty, but other fields are set"}},
		"one text": {func(h *mailHost) {
			noMail(h)
			h.cfg.Mail.Texts.Templates = os.DirFS("../operations")
		}, []string{"Config.Mail.Texts.AppName is empty"}},

		"a Mailer and a server": {func(h *mailHost) { h.mailer = mailer{} }, []string{"Server has no effect beside the host's own Mailer: leave"}},
		"a Mailer without texts": {func(h *mailHost) { ownMailer(h); h.cfg.Mail.Texts = mail.Config{} },
			[]string{"a Mailer sends what is written by Config.Mail.Texts or by a MailComposer: set"}},
		"a Mailer and faults": {func(h *mailHost) {
			ownMailer(h)
			h.cfg.PusherPolicy.Email, h.cfg.Mail.Texts, h.cfg.Delivery.MaxAge = nil, mail.Config{}, time.Second
			h.cfg.Mail.Sending.Repeat = time.Second
		}, []string{"pushfx: Config.PusherPolicy.Email is nil", "set Texts", "pushfx: Config.Mail.Sending.Delay and Repeat are 1s and 1s"}},
		"a Mailer and an incomplete address": {func(h *mailHost) { ownMailer(h); h.cfg.Mail.Texts.PublicURL = "http://public.example.org/?a=b" },
			[]string{`Config.Mail.Texts.PublicURL is "http://public.example.org/?a=b", want`}},
		"a Mailer, a MailComposer, and no key": {func(h *mailHost) { ownMailer(h); h.composer, h.cfg.Mail.Texts.Key = composer{}, "" }, []string{"Config.Mail.Texts.Key has 0 bytes"}},
		"a MailComposer and templates": {func(h *mailHost) {
			h.composer, h.cfg.Mail.Texts.ClientURL, h.cfg.Mail.Texts.Templates = composer{}, "", os.DirFS("../operations")
		},
			[]string{"Templates and .ClientURL have no effect beside the host's own MailComposer: leave"}},
		"a MailComposer and links": {func(h *mailHost) { h.composer = composer{} }, []string{"Templates and .ClientURL have no effect"}},
		"a MailComposer without a Mailer": {func(h *mailHost) { noMail(h); h.composer = composer{} },
			[]string{"a MailComposer has no effect on a host that sends no mail: set"}},
		"a delay without a Mailer": {func(h *mailHost) { noMail(h); h.cfg.Mail.Sending.Delay = time.Hour },
			[]string{"Config.Mail.Sending has no effect on a host that sends no mail: set"}},
		"a delay without delivery": {func(h *mailHost) { noMail(h); h.noDelivery, h.cfg.Mail.Sending.Delay = true, time.Hour }, []string{".Sending need delivery"}},
	} {
		h := mailHost{cfg: hosttest.WithMail(pushfx.DefaultConfig(), "127.0.0.1:1")}
		test.change(&h)
		_, err := pushfx.New(client, h.cfg, h.parts())
		for way, err := range map[string]error{"with fx": hosttest.Startable(client, h.options()...).Err(), "without fx": err} {
			if (err == nil) != (test.want == nil) || err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%s, %s: got %v", name, way, err)
			}
			for _, want := range test.want {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s: got %v, want %q", name, way, err, want)
				}
			}
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

// A host that wraps the module's mailer and composer still uses the server and the texts of its config.
func TestAHostWrapsTheMailerAndTheComposer(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	h := mailHost{cfg: hosttest.WithMail(pushfx.DefaultConfig(), "127.0.0.1:1")}
	wrap := fx.Decorate(
		func(m module.Mailer) module.Mailer { return struct{ module.Mailer }{m} },
		func(c module.MailComposer) module.MailComposer { return struct{ module.MailComposer }{c} },
	)
	if err := hosttest.Startable(client, append(h.options(), wrap)...).Err(); err != nil {
		t.Error(err)
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
