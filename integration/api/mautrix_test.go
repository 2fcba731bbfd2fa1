package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"testing"

	"go.uber.org/fx"
	"maunium.net/go/mautrix"
	"maunium.net/go/mautrix/event"
	"maunium.net/go/mautrix/id"
	"maunium.net/go/mautrix/pushrules"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

func newMautrix(t *testing.T, s *apiService) *mautrix.Client {
	t.Helper()
	user := s.caller(t, hosttest.V3).user
	client, err := mautrix.NewClient(s.host.URL, id.UserID(user), user)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// The library reads the rules that it has set, at the requested positions, and knows the errors.
func TestMautrixAndRules(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), newMautrix(t, newService(t))
	rules, err := client.GetPushRules(ctx)
	if err != nil || len(rules.Override) != 10 || len(rules.Underride) != 5 {
		t.Fatalf("got %+v, %v", rules, err)
	}
	invite := &event.Event{
		Type:     event.StateMember,
		StateKey: new(string(client.UserID)),
		Content:  event.Content{Raw: map[string]any{"membership": "invite"}},
	}
	if should := rules.GetActions(nil, invite).Should(); !should.Notify || should.SoundName != "default" {
		t.Errorf("by the library's own evaluation, an invite should %+v", should)
	}

	condition := &pushrules.PushCondition{Kind: pushrules.KindEventMatch, Key: "type", Pattern: "org.example"}
	sound := &pushrules.PushAction{Action: pushrules.ActionSetTweak, Tweak: pushrules.TweakSound, Value: "default"}
	loud := pushrules.PushActionArray{{Action: pushrules.ActionNotify}, sound}
	for _, want := range []*pushrules.PushRule{
		{Type: pushrules.RoomRule, RuleID: "!room#odd?chars%25+ 😀:example.org", Actions: pushrules.PushActionArray{{Action: "dont_notify"}}},
		{Type: pushrules.ContentRule, RuleID: "a b&c", Actions: loud, Pattern: "cake*"},
		{Type: pushrules.OverrideRule, RuleID: "quiet", Actions: pushrules.PushActionArray{}, Conditions: []*pushrules.PushCondition{condition}},
	} {
		put := mautrix.ReqPutPushRule{Actions: want.Actions, Conditions: want.Conditions, Pattern: want.Pattern}
		err := client.PutPushRule(ctx, "global", want.Type, want.RuleID, &put)
		want.Enabled = true
		if got, failed := client.GetPushRule(ctx, "global", want.Type, want.RuleID); err != nil || failed != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, %v, want %+v", got, err, failed, want)
		}
	}

	const kind, name = pushrules.ContentRule, "last"
	for _, err := range []error{
		client.PutPushRule(ctx, "global", kind, name, &mautrix.ReqPutPushRule{After: "a b&c", Actions: loud, Pattern: "p"}),
		client.SetPushRuleEnabled(ctx, "global", kind, name, false),
		client.PutPushRuleActions(ctx, "global", kind, name, []*pushrules.PushAction{sound}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := &pushrules.PushRule{Type: kind, RuleID: name, Actions: pushrules.PushActionArray{sound}, Pattern: "p"}
	if rules, err = client.GetPushRules(ctx); err != nil || len(rules.Content) != 2 || !reflect.DeepEqual(rules.Content[1], want) {
		t.Errorf("got %+v, %v, want %+v last", rules, err, want)
	}
	if err := client.DeletePushRule(ctx, "global", kind, name); err != nil {
		t.Fatal(err)
	}

	_, missing := client.GetPushRule(ctx, "global", kind, name)
	_, scope := client.GetPushRule(ctx, "device", kind, name)
	_, path := client.MakeRequest(ctx, http.MethodGet, client.BuildClientURL("v3", "pushrules", "global", "override"), nil, nil)
	for _, test := range []struct {
		err  error
		want mautrix.RespError
		text string
	}{
		{missing, mautrix.MNotFound, "Push rule not found."},
		{scope, mautrix.MInvalidParam, "Scopes other than 'global' are not supported."},
		{path, mautrix.MUnrecognized, "Unrecognized request."},
		{client.PutPushRuleActions(ctx, "global", kind, name, nil), mautrix.MBadJSON, "actions must be an array"},
	} {
		var http mautrix.HTTPError
		if !errors.Is(test.err, test.want) || !errors.As(test.err, &http) || http.RespError.Err != test.text {
			t.Errorf("got %v, want %v: %s", test.err, test.want, test.text)
		}
	}
}

// The library reads sets with the rules of all features, and sets with choices for disabled features.
func TestMautrixAndFeatures(t *testing.T) {
	t.Parallel()
	const end = ".org.matrix.msc3930.rule.poll_end"
	ctx := context.Background()
	var push *pushfx.Push
	client := newMautrix(t, newService(t, fx.Populate(&push), fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.Features = pushrule.Features()
		return c
	})))
	if !push.UnstableFeatures()[pushrule.EncryptedEvents.Flag] {
		t.Errorf("the flags are %v", push.UnstableFeatures())
	}
	defaults, err := pushrule.NewDefaults(pushrule.Features())
	if err != nil {
		t.Fatal(err)
	}
	all := defaults.For(hosttest.Alice)
	rules, err := client.GetPushRules(ctx)
	if err != nil || len(rules.Override) != len(all.List(pushrule.Override)) || len(rules.Underride) != len(all.List(pushrule.Underride)) {
		t.Fatalf("got %+v, %v", rules, err)
	}
	poll := &event.Event{Type: event.NewEventType("org.matrix.msc3381.poll.start"), Content: event.Content{Raw: map[string]any{}}}
	if should := rules.GetActions(mautrixRoom{}, poll).Should(); !should.Notify {
		t.Error("by the library's own evaluation, a poll does not notify")
	}
	if err := client.SetPushRuleEnabled(ctx, "global", pushrules.UnderrideRule, end, false); err != nil {
		t.Fatal(err)
	}

	user := mxid.UserID(client.UserID)
	_, err = push.Stores.Rules.Update(ctx, user, func(set *pushrule.Ruleset, _ bool) error {
		set.MergeDefaults(pushrule.ServerDefault(user))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rules, err = client.GetPushRules(ctx); err != nil || len(rules.Override) != 10 || len(rules.Underride) != 5 {
		t.Fatalf("off: got %+v, %v", rules, err)
	}
	if err := push.Host.RefreshDefaults(ctx, user); err != nil {
		t.Fatal(err)
	}
	if rule, err := client.GetPushRule(ctx, "global", pushrules.UnderrideRule, end); err != nil || rule.Enabled {
		t.Errorf("on again: got %+v, %v", rule, err)
	}
}

// The library lists pushers with a POST, which no server serves, so the test sends the GET itself.
func TestMautrixAndPushers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newMautrix(t, newService(t, fx.Decorate(func(c pushfx.Config) pushfx.Config {
		sendMail(&c)
		return c
	})))
	phone := mautrix.Pusher{
		Kind: new(mautrix.PusherKindHTTP), AppID: "org.example.app", PushKey: "phone",
		AppDisplayName: "App", DeviceDisplayName: "Phone", Language: "en", ProfileTag: "x",
		Data: mautrix.PusherData{"url": "https://push.example.org/_matrix/push/v1/notify", "format": "event_id_only"},
	}
	email := mautrix.Pusher{
		Kind: new(mautrix.PusherKindEmail), AppID: mautrix.PusherAppEmail, PushKey: "mine@example.org",
		AppDisplayName: "Email", DeviceDisplayName: "a@example.org", Language: "en", Data: mautrix.PusherData{},
	}
	gone := phone
	gone.Kind = nil
	for _, set := range []struct {
		pusher mautrix.Pusher
		want   []mautrix.Pusher
	}{{phone, []mautrix.Pusher{phone}}, {email, []mautrix.Pusher{phone, email}}, {gone, []mautrix.Pusher{email}}} {
		if err := client.SetPusher(ctx, &set.pusher); err != nil {
			t.Fatal(err)
		}
		var got mautrix.RespPushers
		_, err := client.MakeRequest(ctx, http.MethodGet, client.BuildClientURL("v3", "pushers"), nil, &got)
		if err != nil || !reflect.DeepEqual(got.Pushers, set.want) {
			t.Errorf("got %+v, %v, want %+v", got.Pushers, err, set.want)
		}
	}
}
