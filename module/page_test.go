package module_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/storetest"
)

const alice mxid.UserID = "@alice:example.org"

type pageHost struct {
	homeserver
	syncEndpoint
	t     *testing.T
	rules module.RuleService
}

func newPageHost(t *testing.T) *pageHost {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	t.Cleanup(func() {
		if logs.Len() > 0 {
			t.Errorf("calls failed: %v", logs.All())
		}
	})
	memory := storetest.NewMemory()
	stores := module.Stores{Rules: memory.Rules(), Pushers: memory.Pushers(), Pushkeys: memory.Pushkeys()}
	changes, err := feed.New(stores, feed.DefaultConfig(), nil, feed.Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { changes.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	policy := pusher.DefaultPolicy()
	policy.Email = func(context.Context, mxid.UserID, string) (bool, error) { return true, nil }
	services := service.New(stores, changes, service.Options{Limits: pushrule.DefaultLimits(), Policy: policy})
	rules := services.Rules()
	return &pageHost{
		homeserver{services.Host(rules), services.Pushers(), zap.New(core)}, syncEndpoint{changes.Sync(rules), zap.New(core)}, t, rules,
	}
}

func (h *pageHost) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// sync waits at most a second.
func (h *pageHost) sync(since int64) (event string, next int64) {
	h.t.Helper()
	text, next := h.pushRules(h.t.Context(), alice, since, time.Second)
	return string(text), next
}

func (h *pageHost) wantPushers(when string, want int) {
	h.t.Helper()
	list, err := h.pushers.List(h.t.Context(), alice)
	h.must(err)
	if list.Len() != want {
		h.t.Errorf("%s: %d pushers, want %d", when, list.Len(), want)
	}
}

func TestSyncExample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPageHost(t)
		h.registered(t.Context(), alice)
		event, next := h.sync(0)
		if !strings.Contains(event, ".m.rule.master") || next == 0 {
			t.Errorf("the first sync: got %s, %d", event, next)
		}
		if event, same := h.sync(next); event != "" || same != next {
			t.Errorf("a sync without news: got %s, %d", event, same)
		}
		go func() {
			time.Sleep(time.Second / 2)
			h.must(h.rules.Put(t.Context(), alice, pushrule.Room, "!old:example.org", pushrule.Draft{}, pushrule.Position{}))
		}()
		begin := time.Now()
		event, next = h.sync(next)
		if waited := time.Since(begin); !strings.Contains(event, "!old:example.org") || waited != time.Second/2 {
			t.Errorf("a sync that is woken: got %s after %s", event, waited)
		}
		h.must(h.upgradedRoom(t.Context(), []mxid.UserID{alice, "@bob:example.org"}, "!old:example.org", "!new:example.org"))
		if event, _ = h.sync(next); !strings.Contains(event, "!new:example.org") {
			t.Errorf("after the upgrade: got %s", event)
		}
	})
}

func phone(device string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: device}, Kind: pusher.HTTP, Device: device,
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
}

func TestDevicesExample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, ctx := newPageHost(t), t.Context()
		h.registered(ctx, alice)
		set := func(devices ...string) {
			for _, device := range devices {
				h.must(h.pushers.Set(ctx, alice, phone(device), pusher.KeepOthers))
			}
		}
		set("PHONE", "TABLET", "LAPTOP")
		h.wantPushers("as set", 3)
		h.loggedOut(ctx, alice, "OTHER")
		h.wantPushers("after the logout of another device", 3)
		h.loggedOut(ctx, alice, "PHONE")
		h.wantPushers("after the logout of one", 2)
		h.changedPassword(ctx, alice, "TABLET")
		h.wantPushers("after a change of the password", 1)
		h.notify(ctx, []mxid.UserID{alice})
		set("PHONE")
		h.loggedIn(ctx, alice, []string{"PHONE"})
		h.wantPushers("after a login", 1)
		h.loggedOutEverywhere(ctx, alice)
		h.wantPushers("after the logout everywhere", 0)
		mail := pusher.Pusher{Key: pusher.Key{AppID: pusher.EmailAppID, Pushkey: "a@bücher.example"}, Kind: pusher.Email, Data: `{}`}
		h.must(h.pushers.Set(ctx, alice, mail, pusher.KeepOthers))
		h.tookAddressAway(ctx, alice, "b@bücher.example")
		h.wantPushers("after another address is taken away", 1)
		h.tookAddressAway(ctx, alice, "a@Bücher.example")
		h.wantPushers("after the address is taken away", 0)
		set("PHONE")
		h.deactivated(ctx, alice)
		h.wantPushers("after the deactivation", 0)
		if _, err := h.rules.Rule(ctx, alice, pushrule.Override, ".m.rule.master"); !errors.Is(err, pushrule.ErrEventNotFound) {
			t.Errorf("after the deactivation: got %v", err)
		}
	})
}

// alicesImport is an ImportSource with one user.
type alicesImport struct{ module.ImportSource }

func (alicesImport) Load(context.Context, mxid.UserID) (from module.Import, found bool, err error) {
	from.Rules = `{"global":{"room":[{"rule_id":"!old:example.org","default":false,"enabled":true,"actions":[]}]}}`
	from.Pushers = []pusher.Pusher{phone("PHONE"), phone("TABLET")}
	return from, true, nil
}

func TestImportExample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPageHost(t)
		h.must((&mover{host: h.host, old: alicesImport{}}).moveIn(t.Context(), alice))
		if event, _ := h.sync(0); !strings.Contains(event, "!old:example.org") {
			t.Errorf("got %s", event)
		}
		h.wantPushers("after the import", 2)
	})
}

type health struct{ err error }

func (h health) Healthy(context.Context) error { return h.err }

func TestProbeExample(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{http.StatusOK: nil, http.StatusServiceUnavailable: errors.New("no answer")} {
		answer := httptest.NewRecorder()
		probes{health{err}}.ready(answer, httptest.NewRequest(http.MethodGet, "/ready", nil))
		if answer.Code != want {
			t.Errorf("%v: got %d, want %d", err, answer.Code, want)
		}
	}
}
