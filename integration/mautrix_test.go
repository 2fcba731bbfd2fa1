package integration

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/fx"
	"maunium.net/go/mautrix"
	"maunium.net/go/mautrix/event"
	"maunium.net/go/mautrix/id"
	"maunium.net/go/mautrix/pushrules"

	"github.com/pushfx/pushfx"
)

// newClient returns a client library's client for a new user.
func newClient(t *testing.T, s *service) *mautrix.Client {
	t.Helper()
	user := s.caller(t, v3).user
	client, err := mautrix.NewClient(s.host.url, id.UserID(user), user)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// newClientWithRules is [newClient] for a user whose rule set exists.
func newClientWithRules(t *testing.T, s *service) *mautrix.Client {
	t.Helper()
	client := newClient(t, s)
	if _, err := client.GetPushRules(context.Background()); err != nil {
		t.Fatal(err)
	}
	return client
}

var (
	notify      = &pushrules.PushAction{Action: pushrules.ActionNotify}
	dontNotify  = &pushrules.PushAction{Action: "dont_notify"}
	playDefault = &pushrules.PushAction{Action: pushrules.ActionSetTweak, Tweak: pushrules.TweakSound, Value: "default"}
)

func TestMautrixReadsTheDefaultRules(t *testing.T) {
	t.Parallel()
	client := newClient(t, newService(t))
	rules, err := client.GetPushRules(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if n, m := len(rules.Override), len(rules.Underride); n != 10 || m != 5 {
		t.Errorf("%d override and %d underride rules, want 10 and 5", n, m)
	}
	if first := rules.Override[0]; first.RuleID != ".m.rule.master" || first.Enabled || !first.Default {
		t.Errorf("the first override rule is %+v", first)
	}

	// The library's own evaluation of the set.
	invite := &event.Event{
		Type:     event.StateMember,
		StateKey: new(string(client.UserID)),
		Content:  event.Content{Raw: map[string]any{"membership": "invite"}},
	}
	if should := rules.GetActions(nil, invite).Should(); !should.Notify || should.SoundName != "default" {
		t.Errorf("an invite should %+v", should)
	}
}

func TestMautrixPutsARule(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := context.Background()
	for _, test := range []struct {
		name string
		kind pushrules.PushRuleType
		id   string
		put  mautrix.ReqPutPushRule
		want pushrules.PushRule
	}{
		{
			"room", pushrules.RoomRule, "!room#odd?chars%25+ 😀:example.org",
			mautrix.ReqPutPushRule{Actions: []*pushrules.PushAction{dontNotify}},
			pushrules.PushRule{Enabled: true, Actions: pushrules.PushActionArray{dontNotify}},
		},
		{
			"content", pushrules.ContentRule, "cake",
			mautrix.ReqPutPushRule{Actions: []*pushrules.PushAction{notify, playDefault}, Pattern: "cake*"},
			pushrules.PushRule{Enabled: true, Actions: pushrules.PushActionArray{notify, playDefault}, Pattern: "cake*"},
		},
		{
			"override without actions", pushrules.OverrideRule, "quiet",
			mautrix.ReqPutPushRule{
				Actions:    []*pushrules.PushAction{},
				Conditions: []*pushrules.PushCondition{{Kind: pushrules.KindEventMatch, Key: "type", Pattern: "org.example"}},
			},
			pushrules.PushRule{
				Enabled: true, Actions: pushrules.PushActionArray{},
				Conditions: []*pushrules.PushCondition{{Kind: pushrules.KindEventMatch, Key: "type", Pattern: "org.example"}},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := newClientWithRules(t, s)
			if err := client.PutPushRule(ctx, "global", test.kind, test.id, &test.put); err != nil {
				t.Fatal(err)
			}
			test.want.Type, test.want.RuleID = test.kind, test.id
			got, err := client.GetPushRule(ctx, "global", test.kind, test.id)
			if err != nil || !reflect.DeepEqual(got, &test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestMautrixPlacesRules(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newClientWithRules(t, newService(t))
	put := func(id, before, after string) {
		t.Helper()
		err := client.PutPushRule(ctx, "global", pushrules.ContentRule, id, &mautrix.ReqPutPushRule{
			Before: before, After: after, Actions: []*pushrules.PushAction{notify}, Pattern: "p",
		})
		if err != nil {
			t.Error(err)
		}
	}
	order := func() string {
		t.Helper()
		rules, err := client.GetPushRules(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, rule := range rules.Content {
			ids = append(ids, rule.RuleID)
		}
		return strings.Join(ids, " ")
	}
	put("a b&c", "", "")
	put("first", "a b&c", "")
	put("last", "", "a b&c")
	put("third", "last", "first")
	if got, want := order(), "first a b&c third last"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	put("last", "first", "")
	if got, want := order(), "last first a b&c third"; got != want {
		t.Errorf("moved: got %s, want %s", got, want)
	}
}

func TestMautrixChangesAndDeletesARule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newClientWithRules(t, newService(t))
	const kind, name = pushrules.SenderRule, "@bob:example.org"
	for _, err := range []error{
		client.PutPushRule(ctx, "global", kind, name, &mautrix.ReqPutPushRule{Actions: []*pushrules.PushAction{notify}}),
		client.SetPushRuleEnabled(ctx, "global", kind, name, false),
		client.PutPushRuleActions(ctx, "global", kind, name, []*pushrules.PushAction{playDefault}),
		client.SetPushRuleEnabled(ctx, "global", pushrules.OverrideRule, ".m.rule.master", true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := &pushrules.PushRule{Type: kind, RuleID: name, Actions: pushrules.PushActionArray{playDefault}}
	if got, err := client.GetPushRule(ctx, "global", kind, name); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if master, err := client.GetPushRule(ctx, "global", pushrules.OverrideRule, ".m.rule.master"); err != nil || !master.Enabled {
		t.Errorf("got %+v, %v, want it enabled", master, err)
	}
	if err := client.DeletePushRule(ctx, "global", kind, name); err != nil {
		t.Fatal(err)
	}
	if _, err := client.GetPushRule(ctx, "global", kind, name); !errors.Is(err, mautrix.MNotFound) {
		t.Errorf("got %v, want %v", err, mautrix.MNotFound)
	}
}

func TestMautrixSeesTypedErrors(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := context.Background()
	const kind = pushrules.OverrideRule
	put := func(id string, req mautrix.ReqPutPushRule) func(*mautrix.Client) error {
		if req.Actions == nil {
			req.Actions = []*pushrules.PushAction{}
		}
		return func(c *mautrix.Client) error { return c.PutPushRule(ctx, "global", kind, id, &req) }
	}
	for _, test := range []struct {
		name string
		call func(*mautrix.Client) error
		want mautrix.RespError
		text string
	}{
		{"a rule that is missing", func(c *mautrix.Client) error {
			_, err := c.GetPushRule(ctx, "global", kind, "none")
			return err
		}, mautrix.MNotFound, "Push rule not found."},
		{"a legacy rule", func(c *mautrix.Client) error {
			_, err := c.GetPushRule(ctx, "global", kind, ".m.rule.roomnotif")
			return err
		}, mautrix.MNotFound, "Push rule not found."},
		{"another scope", func(c *mautrix.Client) error {
			_, err := c.GetPushRule(ctx, "device", kind, "none")
			return err
		}, mautrix.MInvalidParam, "Scopes other than 'global' are not supported."},
		{"another kind", func(c *mautrix.Client) error {
			_, err := c.GetPushRule(ctx, "global", "other", "none")
			return err
		}, mautrix.MInvalidParam, "Unknown push rule kind."},
		{"a reserved id", put(".x", mautrix.ReqPutPushRule{}), mautrix.MInvalidParam,
			"Rule IDs starting with a dot are reserved for server-default rules."},
		{"an id with a slash", put("a/b", mautrix.ReqPutPushRule{}), mautrix.MInvalidParam, "Rule ID containing invalid characters."},
		{"before a default rule", put("x", mautrix.ReqPutPushRule{Before: ".m.rule.master"}), mautrix.MInvalidParam,
			"Can't place a push rule relatively to a server-default rule."},
		{"after nothing", put("x", mautrix.ReqPutPushRule{After: "none"}), mautrix.MNotFound,
			"The before or after rule could not be found."},
		{"a long id", put(strings.Repeat("x", 2000), mautrix.ReqPutPushRule{}), mautrix.MTooLarge, "Rule ID longer than 1024 bytes."},
		{"a default rule", func(c *mautrix.Client) error {
			return c.DeletePushRule(ctx, "global", kind, ".m.rule.master")
		}, mautrix.MInvalidParam, "Cannot delete a server-default pushrule."},
		{"actions that are null", func(c *mautrix.Client) error {
			return c.PutPushRuleActions(ctx, "global", kind, ".m.rule.master", nil)
		}, mautrix.MBadJSON, "actions must be an array"},
		{"another path", func(c *mautrix.Client) error {
			_, err := c.MakeRequest(ctx, http.MethodGet, c.BuildClientURL("v3", "pushrules", "global", "override"), nil, nil)
			return err
		}, mautrix.MUnrecognized, "Unrecognized request."},
		{"no token", func(c *mautrix.Client) error {
			c.AccessToken = ""
			_, err := c.GetPushRules(ctx)
			return err
		}, mautrix.MMissingToken, "Missing access token."},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.call(newClientWithRules(t, s))
			var http mautrix.HTTPError
			if !errors.Is(err, test.want) || !errors.As(err, &http) || http.RespError.Err != test.text {
				t.Errorf("got %v, want %v: %s", err, test.want, test.text)
			}
		})
	}
	t.Run("no stored event", func(t *testing.T) {
		err := put("x", mautrix.ReqPutPushRule{})(newClient(t, s))
		if !errors.Is(err, mautrix.MNotFound) || !strings.Contains(err.Error(), "PushRules event not found.") {
			t.Errorf("got %v", err)
		}
	})
}

// The library lists pushers with a POST, which no server serves, so that the
// list is requested here.
func TestMautrixSetsPushers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newClient(t, newService(t, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		sendMail(&c)
		return c
	})))
	list := func() []mautrix.Pusher {
		t.Helper()
		var all mautrix.RespPushers
		if _, err := client.MakeRequest(ctx, http.MethodGet, client.BuildClientURL("v3", "pushers"), nil, &all); err != nil {
			t.Fatal(err)
		}
		return all.Pushers
	}
	phone := mautrix.Pusher{
		Kind: new(mautrix.PusherKindHTTP), AppID: "org.example.app", PushKey: "phone",
		AppDisplayName: "App", DeviceDisplayName: "Phone", Language: "en", ProfileTag: "x",
		Data: mautrix.PusherData{"url": "https://push.example.org/_matrix/push/v1/notify", "format": "event_id_only"},
	}
	email := mautrix.Pusher{
		Kind: new(mautrix.PusherKindEmail), AppID: mautrix.PusherAppEmail, PushKey: "mine@example.org",
		AppDisplayName: "Email", DeviceDisplayName: "a@example.org", Language: "en", Data: mautrix.PusherData{},
	}
	for _, pusher := range []mautrix.Pusher{phone, email} {
		if err := client.SetPusher(ctx, &pusher); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := list(), []mautrix.Pusher{phone, email}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}

	gone := phone
	gone.Kind = nil
	if err := client.SetPusher(ctx, &gone); err != nil {
		t.Fatal(err)
	}
	if got, want := list(), []mautrix.Pusher{email}; !reflect.DeepEqual(got, want) {
		t.Errorf("after the deletion: got %+v, want %+v", got, want)
	}

	insecure := phone
	insecure.Data = mautrix.PusherData{"url": "http://push.example.org/_matrix/push/v1/notify"}
	if err := client.SetPusher(ctx, &insecure); !errors.Is(err, mautrix.MInvalidParam) {
		t.Errorf("plain http: got %v, want %v", err, mautrix.MInvalidParam)
	}
}
