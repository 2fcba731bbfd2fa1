package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

var sendTestCommand = command{
	name: "send-test", args: "USER",
	summary: "sends a test notification to a user's pushers",
	about: "Sends a notification of an invented event to each pusher of a user, from this machine but otherwise\n" +
		"like a host, and shows the answers. With -mail, pushers of kind email get a test mail, with -vapid-subject browsers a push. " +
		"It stores nothing and removes no rejected pusher. Exit status 1:\n" +
		"a gateway did not accept it, or there is no such user or pusher.",
	flags: func(f *flags) {
		f.StringVar(&f.pusher, "pusher", "", "send to the pusher with this `DIGEST` only; show and queues show have it")
		f.Func("allowed-prefixes", "the hosts' PusherPolicy.AllowedPrefixes: `PREFIXES` of addresses that are not public,\nseparated by commas",
			func(text string) (err error) {
				for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
					prefix, failed := netip.ParsePrefix(part)
					f.allowedPrefixes, err = append(f.allowedPrefixes, prefix), errors.Join(err, failed)
				}
				return err
			})
		f.StringVar(&f.mail.URL, "mail", "",
			"the hosts' Mail.Server.`URL`, for pushers of kind email; its password may be in the environment variable\n"+mailPassword)
		f.StringVar(&f.mail.From, "mail-from", "", "the hosts' Mail.Server.From: the `ADDRESS` of the sender")
		f.StringVar(&f.webPush.Subject, "vapid-subject", "",
			"the hosts' WebPush.`SUBJECT`, for pushers of web push; WebPush.Key is in the environment variable\n"+vapidKey)
		f.addJSON()
	},
	run: (*call).sendTest,
}

// Environment variables.
const (
	mailPassword = "SMTP_PASSWORD"
	vapidKey     = "VAPID_KEY"
)

// shownTest is the answer of a pusher's gateway.
type shownTest struct {
	namedPusher
	Gateway string               `json:"gateway,omitempty"`
	Status  int                  `json:"status"` // 0 without an answer
	Outcome delivery.PostOutcome `json:"outcome,omitempty"`
	Took    float64              `json:"took_seconds"`
	Why     string               `json:"why,omitempty"` // why there was no answer
}

func (c *call) sendTest(ctx context.Context) error {
	user, err := c.userArgument()
	if err != nil {
		return err
	}
	list, err := c.visiblePushers(ctx, user)
	if err != nil {
		return err
	}
	var pushers []pusher.Pusher
	for _, p := range list.All() {
		if c.pusher == "" || delivery.PusherID(user, p.Key) == c.pusher {
			pushers = append(pushers, p)
		}
	}
	if len(pushers) == 0 {
		return c.noPusher(ctx, user)
	}
	client := dialguard.New(c.allowedPrefixes...).Client(workers)
	t := tester{gateway: httppush.NewGateway(client, client), webPush: c.webPush}
	if t.webPush.IsOn() {
		t.webPush.Key = os.Getenv(vapidKey)
		if err := t.webPush.Validate(); err != nil {
			return fmt.Errorf("-vapid-subject, %s: %w", vapidKey, err)
		}
	}
	if c.mail.URL != "" {
		cfg := smtp.DefaultConfig()
		cfg.URL, cfg.From, cfg.Password = c.mail.URL, c.mail.From, os.Getenv(mailPassword)
		mailer, err := smtp.New(cfg)
		if err != nil {
			return fmt.Errorf("-mail, -mail-from: %w", err)
		}
		defer mailer.Close()
		t.mailer = mailer
	}
	var mu sync.Mutex
	var all []shownTest
	err = parallel(ctx, pushers, func(ctx context.Context, p pusher.Pusher) error {
		shown := t.sendTo(ctx, user, p)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, shown)
		return nil
	})
	if err != nil {
		return err
	}
	isLeft := slices.ContainsFunc(all, func(t shownTest) bool { return t.Outcome != delivery.PostDelivered })
	return c.result(all, func(w io.Writer) error { return writeTestTable(w, all) }, isLeft)
}

// noPusher is the error for a user without the pusher of the flag.
func (c *call) noPusher(ctx context.Context, user mxid.UserID) error {
	if err := c.checkUser(ctx, user); err != nil {
		return err
	}
	if c.pusher != "" {
		return notFoundError(fmt.Sprintf("%s has no pusher %s", printable(string(user)), printable(c.pusher)))
	}
	return notFoundError(fmt.Sprintf("%s has no pushers", printable(string(user))))
}

// tester sends test notifications.
type tester struct {
	gateway module.Gateway
	mailer  module.Mailer  // nil without -mail
	webPush webpush.Config // off without -vapid-subject
}

func (t tester) sendTo(ctx context.Context, user mxid.UserID, p pusher.Pusher) shownTest {
	shown := shownTest{namedPusher: newNamedPusher(user, p)}
	r, err := t.send(ctx, user, p, pushfx.DefaultConfig().Delivery)
	if err == nil {
		shown.Gateway, shown.Status, shown.Outcome, shown.Took, err = r.Gateway, r.Status, r.Outcome, r.Took.Seconds(), r.Err
	}
	if err != nil {
		shown.Why = err.Error()
	}
	return shown
}

func (t tester) send(ctx context.Context, user mxid.UserID, p pusher.Pusher, cfg delivery.Config) (delivery.TestResult, error) {
	switch {
	case p.Kind == pusher.Email && t.mailer == nil:
		return delivery.TestResult{}, errors.New("its kind is email, and -mail is not given")
	case p.Kind.NeedsAck() && !t.webPush.IsOn():
		return delivery.TestResult{}, errors.New("its kind is web push, and -vapid-subject is not given")
	}
	return delivery.SendTest(ctx, delivery.Seams{Gateway: t.gateway, Mailer: t.mailer, MailComposer: testMail{}, WebPush: t.webPush}, user, p, cfg)
}

// testMail writes test mails. They have no link to stop mails: pushctl has no key for it.
type testMail struct{}

func (testMail) ComposeMail(module.MailDigest) (module.Mail, error) {
	const text = "This is a test of the mails about unread messages. There is nothing to do."
	return module.Mail{Subject: "Test notification", Text: text, HTML: "<p>" + text + "</p>"}, nil
}

func writeTestTable(w io.Writer, all []shownTest) error {
	var rows [][]string
	for _, t := range all {
		status := "-"
		if t.Status > 0 {
			status = fmt.Sprint(t.Status)
		}
		rows = append(rows, append(t.cells(),
			printable(cmp.Or(t.Gateway, "-")), status, cmp.Or(string(t.Outcome), "not sent"),
			duration(t.Took, time.Millisecond), printable(cmp.Or(t.Why, "-")),
		))
	}
	return writeTable(w, slices.Concat(pusherColumns, []string{"GATEWAY", "STATUS", "OUTCOME", "TOOK", "WHY"}), rows)
}
