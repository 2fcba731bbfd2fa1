package integration

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/fx"
	"maunium.net/go/mautrix"
	"maunium.net/go/mautrix/event"
	"maunium.net/go/mautrix/id"
	"maunium.net/go/mautrix/pushrules"

	"github.com/pushfx/pushfx"
)

// newClientWithRules returns a client library's client for a new user whose rule set
// exists.
func newClientWithRules(t *testing.T, s *service) *mautrix.Client {
	t.Helper()
	user := s.owner(t, v3).user
	client, err := mautrix.NewClient(s.host.url, id.UserID(user), user)
	if err != nil {
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
	client := newClientWithRules(t, newService(t))
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
	ctx := context.Background()
	client := newClientWithRules(t, newService(t))
	condition := &pushrules.PushCondition{Kind: pushrules.KindEventMatch, Key: "type", Pattern: "org.example"}
	for _, want := range []pushrules.PushRule{
		{Type: pushrules.RoomRule, RuleID: "!room#odd?chars%25+ 😀:example.org", Actions: pushrules.PushActionArray{dontNotify}},
		{Type: pushrules.ContentRule, RuleID: "cake", Actions: pushrules.PushActionArray{notify, playDefault}, Pattern: "cake*"},
		{Type: pushrules.OverrideRule, RuleID: "quiet", Actions: pushrules.PushActionArray{}, Conditions: []*pushrules.PushCondition{condition}},
	} {
		want.Enabled = true
		if err := client.PutPushRule(ctx, "global", want.Type, want.RuleID, &mautrix.ReqPutPushRule{
			Actions: want.Actions, Conditions: want.Conditions, Pattern: want.Pattern,
		}); err != nil {
			t.Fatal(err)
		}
		got, err := client.GetPushRule(ctx, "global", want.Type, want.RuleID)
		if err != nil || !reflect.DeepEqual(got, &want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestMautrixPlacesRules(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newClientWithRules(t, newService(t))
	for _, put := range []struct{ id, before, after string }{{"a b&c", "", ""}, {"first", "a b&c", ""}, {"last", "", "a b&c"}} {
		if err := client.PutPushRule(ctx, "global", pushrules.ContentRule, put.id, &mautrix.ReqPutPushRule{
			Before: put.before, After: put.after, Actions: []*pushrules.PushAction{notify}, Pattern: "p",
		}); err != nil {
			t.Error(err)
		}
	}
	rules, err := client.GetPushRules(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, rule := range rules.Content {
		ids = append(ids, rule.RuleID)
	}
	if want := []string{"first", "a b&c", "last"}; !slices.Equal(ids, want) {
		t.Errorf("got %q, want %q", ids, want)
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
	client := newClientWithRules(t, newService(t))
	ctx := context.Background()
	const kind = pushrules.OverrideRule
	_, missing := client.GetPushRule(ctx, "global", kind, "none")
	_, scope := client.GetPushRule(ctx, "device", kind, "none")
	_, path := client.MakeRequest(ctx, http.MethodGet, client.BuildClientURL("v3", "pushrules", "global", "override"), nil, nil)
	for _, test := range []struct {
		err  error
		want mautrix.RespError
		text string
	}{
		{missing, mautrix.MNotFound, "Push rule not found."},
		{scope, mautrix.MInvalidParam, "Scopes other than 'global' are not supported."},
		{path, mautrix.MUnrecognized, "Unrecognized request."},
		{client.DeletePushRule(ctx, "global", kind, ".m.rule.master"), mautrix.MInvalidParam, "Cannot delete a server-default pushrule."},
		{client.PutPushRuleActions(ctx, "global", kind, ".m.rule.master", nil), mautrix.MBadJSON, "actions must be an array"},
		{client.PutPushRule(ctx, "global", kind, strings.Repeat("x", 2000), &mautrix.ReqPutPushRule{Actions: []*pushrules.PushAction{}}),
			mautrix.MTooLarge, "Rule ID longer than 1024 bytes."},
	} {
		var http mautrix.HTTPError
		if !errors.Is(test.err, test.want) || !errors.As(test.err, &http) || http.RespError.Err != test.text {
			t.Errorf("got %v, want %v: %s", test.err, test.want, test.text)
		}
	}
}

// The library lists pushers with a POST, which no server serves, so that the
// list is requested here.
func TestMautrixSetsPushers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := newClientWithRules(t, newService(t, fx.Decorate(func(c pushfx.Config) pushfx.Config {
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
}
