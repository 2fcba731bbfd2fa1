package host

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

type formerServer struct {
	mu    sync.Mutex
	users map[mxid.UserID]module.Import
	asked int
}

func newFormerServer(users ...mxid.UserID) *formerServer {
	f := &formerServer{users: map[mxid.UserID]module.Import{}}
	for _, user := range users {
		f.users[user] = module.Import{
			Rules: `{"global":{"room":[{"rule_id":"!old:example.org","default":false,"enabled":true,"actions":[]}],` +
				`"content":[{"rule_id":".m.rule.contains_user_name","default":true,"enabled":false,"actions":[],"pattern":"x"}]}}`,
			Pushers: []pusher.Pusher{formerPusher("second of " + string(user)), formerPusher("first of " + string(user))},
		}
	}
	return f
}

func formerPusher(pushkey string) pusher.Pusher {
	return pusher.Pusher{
		Key: pusher.Key{AppID: "app", Pushkey: pushkey}, Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`, Device: hosttest.Device, Extra: []pusher.Member{pusher.ProfileTag("tag")},
	}
}

func (f *formerServer) Load(_ context.Context, user mxid.UserID) (module.Import, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	from, found := f.users[user]
	return from, found, nil
}

func (f *formerServer) Forget(_ context.Context, user mxid.UserID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.users, user)
	return nil
}

func (f *formerServer) option() fx.Option {
	return fx.Supply(fx.Annotate(f, fx.As(new(module.ImportSource))))
}

// Two hosts get requests of the same users, who are not imported yet, while clients change rules and pushers.
func TestTwoHostsImportTheSameUsersAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	var users []mxid.UserID
	for n := range 30 {
		users = append(users, mxid.UserID(fmt.Sprintf("@user%d:example.org", n)))
	}
	former := newFormerServer(users...)
	var push module.HostService
	var stores module.Stores
	hosts := []*hosttest.Host{
		hosttest.StartHost(t, server.Client(t), former.option(), fx.Populate(&push), fx.Invoke(func(p *pushfx.Push) { stores = p.Stores })),
		hosttest.StartHost(t, server.Client(t), former.option()),
	}
	want := func(h *hosttest.Host, user mxid.UserID, method, path, body string) {
		a, err := h.Try(t.Context(), string(user), method, path, body)
		if err != nil || a.Status != http.StatusOK {
			t.Errorf("%s %s: %d %s, %v", method, path, a.Status, a.Body, err)
		}
	}
	var asking sync.WaitGroup
	for n, h := range hosts {
		for _, user := range users {
			asking.Go(func() { want(h, user, http.MethodGet, hosttest.V3+"/pushrules/", "") })
			asking.Go(func() { want(h, user, http.MethodGet, hosttest.V3+"/pushers", "") })
			asking.Go(func() {
				want(h, user, http.MethodPut, fmt.Sprintf("%s/pushrules/global/room/!new%d:example.org", hosttest.V3, n), `{"actions":[]}`)
			})
			asking.Go(func() {
				want(h, user, http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", fmt.Sprint(user, n)))
			})
		}
		asking.Go(func() { push.Rulesets(t.Context(), users) })
	}
	asking.Wait()
	for _, user := range users {
		rules := hosts[0].Do(string(user), http.MethodGet, hosttest.V3+"/pushrules/global/", "").Body
		for _, id := range []string{"!old:example.org", "!new0:example.org", "!new1:example.org"} {
			if strings.Count(rules, `"rule_id":"`+id+`"`) != 1 {
				t.Errorf("%s: %s is not there once: %s", user, id, rules)
			}
		}
		list, err := stores.Pushers.Load(t.Context(), user)
		if err != nil || list.Len() != 4 || list.All()[0].Pushkey != "second of "+string(user) || list.All()[1].Pushkey != "first of "+string(user) {
			t.Errorf("%s has %d pushers, %v", user, list.Len(), err)
		}
		for _, p := range list.All() {
			entry, err := stores.Pushkeys.Load(t.Context(), p.Digest())
			if err != nil || entry.Last < p.Claim || !slices.Equal(entry.Users, []mxid.UserID{user}) {
				t.Errorf("%s has claim %d of a pushkey, and the entry is %+v, %v", user, p.Claim, entry, err)
			}
		}
	}
	for _, h := range hosts {
		for _, line := range h.TakeLogged() {
			if line.Message != "a setting of the Redis client will hurt" {
				t.Errorf("logged was %v", line)
			}
		}
	}
}

// The test has users with pushers and without.
func TestStoredUsersCostNoExtraCommandWithAnImportSource(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	for _, user := range []mxid.UserID{"@with:example.org", "@without:example.org"} {
		t.Run(string(user), func(t *testing.T) {
			former := newFormerServer(user)
			count := func(options ...fx.Option) (commands []int) {
				client := server.Client(t)
				trips := redistest.RecordTrips(client)
				var push module.HostService
				h := hosttest.StartHost(t, client, append(options, fx.Populate(&push))...)
				everybody := []mxid.UserID{user}
				for _, do := range []func(){ // the first shows the host that the user is stored
					func() { h.Do(string(user), http.MethodGet, hosttest.V3+"/pushrules/", "") },
					func() { h.Do(string(user), http.MethodGet, hosttest.V3+"/pushrules/", "") },
					func() { h.Do(string(user), http.MethodGet, hosttest.V3+"/pushers", "") },
					func() {
						h.Do(string(user), http.MethodPut, hosttest.V3+"/pushrules/global/room/!a:b", `{"actions":[]}`)
					},
					func() { push.Rulesets(t.Context(), everybody) },
					func() { push.Pushers(t.Context(), everybody) },
					func() { push.RemoveDevicePushers(t.Context(), user, "OTHER") },
					func() { h.Do(string(user), http.MethodPost, hosttest.V3+"/pushers/set", deletion("app", "nothing")) },
				} {
					trips.Take()
					do()
					commands = append(commands, dataCommands(trips.Take()))
				}
				return commands
			}
			first := hosttest.StartHost(t, server.Client(t))
			first.Do(string(user), http.MethodGet, hosttest.V3+"/pushrules/", "")
			if user == "@with:example.org" {
				first.Do(string(user), http.MethodPost, hosttest.V3+"/pushers/set", hosttest.HTTPPusher("app", "key"))
			}
			count() // so that scripts are loaded
			without, with := count(), count(former.option())
			if !slices.Equal(with, without) || slices.Contains(without, 0) {
				t.Errorf("%v commands with a source, %v without", with, without)
			}
			if former.asked != 0 {
				t.Errorf("the source was asked %d times", former.asked)
			}
		})
	}
}

// dataCommands counts the commands that read or change users' data, without background work.
func dataCommands(trips []string) (n int) {
	for name := range strings.SplitSeq(strings.Join(trips, "+"), "+") {
		if slices.Contains([]string{"get", "getrange", "hget", "hmget", "hgetall", "eval", "evalsha"}, name) {
			n++
		}
	}
	return n
}

func deletion(appID, pushkey string) string {
	return fmt.Sprintf(`{"app_id":%q,"pushkey":%q,"kind":null}`, appID, pushkey)
}

func TestRefusedImportsAreLoggedWithoutTheirContent(t *testing.T) {
	t.Parallel()
	_, client := hosttest.Embedded(t)
	former := newFormerServer()
	bad := formerPusher("hush")
	bad.Data = `{"url":"ftp://hush"}`
	former.users[hosttest.Alice] = module.Import{Rules: `{"global":{"room":[{"rule_id":"a/hush","actions":[]}]}}`, Pushers: []pusher.Pusher{bad}}
	h := hosttest.StartHost(t, client, former.option())
	h.Do(hosttest.Alice, http.MethodGet, hosttest.V3+"/pushrules/", "")
	lines := h.TakeLogged()
	if len(lines) != 1 || lines[0].Message != "rules or pushers of a user were not imported" || strings.Contains(fmt.Sprint(lines), "hush") {
		t.Fatalf("logged were %v", lines)
	}
	if fields := lines[0].ContextMap(); fields["user_id"] != hosttest.Alice || fmt.Sprint(fields["rules"], fields["pushers"]) != "1 1" {
		t.Errorf("got %v", fields)
	}
}

func TestAnImportSourceMayComeEarlyOrLate(t *testing.T) {
	t.Parallel()
	at := newFormerServer(hosttest.Alice)
	late := &struct{ module.ImportSource }{}
	for name, source := range map[string]module.ImportSource{"at once": at, "late": late} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := hosttest.Embedded(t)
			p, err := pushfx.New(client, pushfx.DefaultConfig(), pushfx.Options{Import: source})
			if err != nil {
				t.Fatal(err)
			}
			if source == late {
				late.ImportSource = newFormerServer(hosttest.Alice)
			}
			content, err := p.Host.AccountData(t.Context(), hosttest.Alice)
			if err != nil || !strings.Contains(string(content), "!old:example.org") {
				t.Errorf("got %s, %v", content, err)
			}
		})
	}
}
