package host

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

type use struct{ calls *atomic.Int64 }

func (u use) count() { u.calls.Add(1) }

type usedRules struct {
	module.RuleStore
	use
}

func (u usedRules) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	u.count()
	return u.RuleStore.Load(ctx, user)
}

type usedPushers struct {
	module.PusherStore
	use
}

func (u usedPushers) Update(ctx context.Context, user mxid.UserID, edit func(*pusher.List) error) error {
	u.count()
	return u.PusherStore.Update(ctx, user, edit)
}

type usedIndex struct {
	module.PushkeyIndex
	use
}

func (u usedIndex) Update(
	ctx context.Context, key pusher.Digest, edit func(*pusher.Entry) error,
) (pusher.Entry, error) {
	u.count()
	return u.PushkeyIndex.Update(ctx, key, edit)
}

type usedRuleService struct {
	module.RuleService
	use
}

func (u usedRuleService) Content(ctx context.Context, user mxid.UserID) (module.Content, error) {
	u.count()
	return u.RuleService.Content(ctx, user)
}

type usedPusherService struct {
	module.PusherService
	use
}

func (u usedPusherService) Set(ctx context.Context, user mxid.UserID, p pusher.Pusher, others pusher.Others) error {
	u.count()
	return u.PusherService.Set(ctx, user, p, others)
}

type usedHostService struct {
	module.HostService
	use
}

func (u usedHostService) EnsureDefaults(ctx context.Context, user mxid.UserID) error {
	u.count()
	return u.HostService.EnsureDefaults(ctx, user)
}

type usedSyncService struct {
	module.SyncService
	use
}

func (u usedSyncService) Since(ctx context.Context, user mxid.UserID, since int64) (module.SyncUpdate, error) {
	u.count()
	return u.SyncService.Since(ctx, user, since)
}

type usedListener struct{ use }

func (u usedListener) PushRulesChanged(context.Context, mxid.UserID) { u.count() }
func (u usedListener) PushRulesMissed(context.Context)               { u.count() }

type usedPusherListener struct{ use }

func (u usedPusherListener) PushersChanged(context.Context, mxid.UserID) { u.count() }
func (u usedPusherListener) PushersMissed(context.Context)               { u.count() } // the set may precede the watch

type usedPusherWatcher struct {
	module.PusherStore
	use
}

func (u usedPusherWatcher) Watch(ctx context.Context, watching func(), changed func(module.PusherChange)) error {
	u.count()
	return u.PusherStore.(module.PusherWatcher).Watch(ctx, watching, changed)
}

type usedAccounts struct{ use }

func (u usedAccounts) LoggedIn(context.Context, mxid.UserID, string) (bool, error) {
	u.count()
	return true, nil
}

type usedBulkAccounts struct{ use }

func (u usedBulkAccounts) LoggedIn(context.Context, mxid.UserID, string) (bool, error) {
	return true, nil
}

func (u usedBulkAccounts) LoggedInMany(_ context.Context, sessions []module.Session) map[module.Session]module.Result[bool] {
	u.count()
	all := map[module.Session]module.Result[bool]{}
	for _, session := range sessions {
		all[session] = module.Result[bool]{Value: true}
	}
	return all
}

type usedImportSource struct{ use }

func (u usedImportSource) Load(context.Context, mxid.UserID) (from module.Import, found bool, err error) {
	u.count()
	return module.Import{}, false, nil
}

func (u usedImportSource) Forget(context.Context, mxid.UserID) error { return nil }

type usedHealth struct{ use }

func (u usedHealth) Healthy(context.Context) error {
	u.count()
	return nil
}

func replacements(u use) map[string]fx.Option {
	return map[string]fx.Option{
		"RuleStore":      fx.Decorate(func(s module.RuleStore) module.RuleStore { return usedRules{s, u} }),
		"PusherStore":    fx.Decorate(func(s module.PusherStore) module.PusherStore { return usedPushers{s, u} }),
		"PushkeyIndex":   fx.Decorate(func(s module.PushkeyIndex) module.PushkeyIndex { return usedIndex{s, u} }),
		"RuleService":    fx.Decorate(func(s module.RuleService) module.RuleService { return usedRuleService{s, u} }),
		"PusherService":  fx.Decorate(func(s module.PusherService) module.PusherService { return usedPusherService{s, u} }),
		"HostService":    fx.Decorate(func(s module.HostService) module.HostService { return usedHostService{s, u} }),
		"SyncService":    fx.Decorate(func(s module.SyncService) module.SyncService { return usedSyncService{s, u} }),
		"ChangeListener": fx.Provide(pushfx.AsChangeListener(func() usedListener { return usedListener{u} })),
		"PusherListener": fx.Provide(pushfx.AsPusherListener(func() usedPusherListener { return usedPusherListener{u} })),
		"PusherWatcher": fx.Options(
			fx.Decorate(func(s module.PusherStore) module.PusherStore { return usedPusherWatcher{s, u} }),
			make(hosttest.Recorder, 100).OfPushers(),
		),
		"Health":       fx.Decorate(func(module.Health) module.Health { return usedHealth{u} }),
		"BulkAccounts": fx.Supply(fx.Annotate(usedBulkAccounts{u}, fx.As(new(module.Accounts)))),
		"ImportSource": fx.Supply(fx.Annotate(usedImportSource{u}, fx.As(new(module.ImportSource)))),
		"Accounts":     fx.Supply(fx.Annotate(usedAccounts{u}, fx.As(new(module.Accounts)))),
	}
}

func TestEveryInterfaceOfTheRegistryCanBeReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range registryInterfaces(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := use{new(atomic.Int64)}
			option, known := replacements(u)[name]
			if !known {
				t.Fatal("there is no replacement of it here")
			}
			_, client := hosttest.Embedded(t)
			var push module.HostService
			var changes module.SyncService
			var health module.Health
			h := hosttest.StartHost(t, client, option, fx.Populate(&push, &changes, &health))
			if err := health.Healthy(t.Context()); err != nil {
				t.Error(err)
			}
			if err := push.EnsureDefaults(t.Context(), hosttest.Alice); err != nil {
				t.Error(err)
			}
			if _, err := changes.Since(t.Context(), hosttest.Alice, 0); err != nil {
				t.Error(err)
			}
			h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
			h.Do(hosttest.Alice, http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", "key"))
			push.Pushers(t.Context(), []mxid.UserID{hosttest.Alice})
			for deadline := time.Now().Add(hosttest.Never); u.calls.Load() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the host's replacement was not used")
				}
			}
		})
	}
}

func registryInterfaces(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../module/registry.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, is := n.(*ast.TypeSpec); is {
			if _, is := spec.Type.(*ast.InterfaceType); is {
				names = append(names, spec.Name.Name)
			}
		}
		return true
	})
	if len(names) < 9 {
		t.Fatalf("found only %q", names)
	}
	return names
}

func TestAHostsDefaultRulesBehaveLikeTheSpecifications(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	const id = ".org.example.rule.poll"
	var push module.HostService
	old := hosttest.StartHost(t, client)
	old.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	h := hosttest.StartHost(t, client, fx.Populate(&push), fx.Decorate(func(c pushfx.Config) pushfx.Config {
		c.DefaultRules = []pushrule.DefaultRule{{
			Kind: pushrule.Underride, ID: id, Actions: []pushrule.Action{`"notify"`}, Before: ".m.rule.message",
		}}
		return c
	}))
	path := hosttest.V3 + "/pushrules/global/underride/" + id
	if a := h.Do(hosttest.Alice, http.MethodGet, path, ""); a.Status != http.StatusNotFound {
		t.Errorf("a stored set has the new rule by itself: %d %s", a.Status, a.Body)
	}
	for range 2 {
		if err := push.RefreshDefaults(t.Context(), hosttest.Alice); err != nil {
			t.Fatal(err)
		}
		h.Do(hosttest.Alice, http.MethodPut, path+"/enabled", `{"enabled":false}`)
	}
	if a := h.Do(hosttest.Alice, http.MethodGet, path, ""); !strings.Contains(a.Body, `"default":true,"enabled":false`) {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	for _, request := range []struct{ method, path, body string }{
		{http.MethodDelete, path, ""},
		{http.MethodPut, path, `{"actions":[]}`},
		{http.MethodPut, hosttest.V3 + "/pushrules/global/underride/mine?after=" + id, `{"actions":[]}`},
	} {
		if a := h.Do(hosttest.Alice, request.method, request.path, request.body); a.Status != http.StatusBadRequest {
			t.Errorf("%s %s: got %d %s", request.method, request.path, a.Status, a.Body)
		}
	}
	rules := push.Rulesets(t.Context(), []mxid.UserID{hosttest.Alice, "@new:example.org"})
	for user, result := range rules {
		list := result.Value.Rules.List(pushrule.Underride)
		at := slices.IndexFunc(list, func(r pushrule.Rule) bool { return r.ID == id })
		if at < 0 || list[at+1].ID != ".m.rule.message" {
			t.Errorf("%s: got %+v", user, list)
		}
	}
}
