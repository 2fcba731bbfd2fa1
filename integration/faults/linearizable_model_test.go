package faults

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
)

// userState is the model's view of a user's stored data, an immutable value.
type userState struct {
	found   bool // the user has rules
	rules   pushrule.Ruleset
	pushers pusher.List
	text    string // the whole state, for comparisons
}

func (s *userState) render() {
	text := []byte("no rules")
	if s.found {
		text = s.rules.AppendJSON(nil)
	}
	s.text = string(s.pushers.AppendJSON(append(text, ' ')))
}

type request struct {
	user, method, path, body string

	// effect makes the change to the state and returns the answer.
	effect func(*userState) string
}

// unknown is the outcome of a request without an answer: the request may have taken effect, or may do so later.
const unknown = "?"

// oneAtATime is the model: pure rules and pushers of each user, changed by one request at a time.
func oneAtATime() porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Partition: partition,
		Init:      func() any { return userState{} },
		Step: func(state, input, output any) (bool, any) {
			return take(state.(userState), input.(request), output.(string))
		},
		Equal:             func(a, b any) bool { return a.(userState).text == b.(userState).text },
		Hash:              func(state any) uint64 { return maphash.String(seed, state.(userState).text) },
		DescribeOperation: func(input, output any) string { return brief(input.(request), output.(string)) },
		DescribeState:     func(state any) string { return state.(userState).text },
	}
}

// take takes one step of the model. It fails if the answer differs from the model's answer.
func take(before userState, r request, got string) (bool, userState) {
	after := before
	want := r.effect(&after)
	return got == want || got == unknown, after
}

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	var parts [][]porcupine.Operation
	place := map[string]int{}
	for _, operation := range history {
		user := operation.Input.(request).user
		i, found := place[user]
		if !found {
			i = len(parts)
			place[user] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], operation)
	}
	return parts
}

func brief(r request, got string) string {
	defaults := pushrule.ServerDefault(mxid.UserID(r.user))
	for _, kind := range pushrule.Kinds() {
		for _, rule := range defaults.List(kind) {
			text := string(rule.AppendJSON(nil, kind))
			got = strings.NewReplacer(","+text, "", text+",", "", text, "").Replace(got)
		}
	}
	return fmt.Sprintf("%s %s %s -> %s", r.method, r.path, r.body, got)
}

type randomClient struct {
	user   string
	number int // among the user's clients
	random *rand.Rand
	sent   int // requests so far
}

func one[T any](a *randomClient, values ...T) T { return values[a.random.IntN(len(values))] }

// value returns a number that no other request contains.
func (a *randomClient) value() int { return 1_000_000*(a.number+1) + a.sent }

// nextForRules returns a random request to the push rules. First reads of the whole set, which create it, meet
// concurrent changes.
func nextForRules(a *randomClient) request {
	switch {
	case a.number < 2 && a.sent == 1:
		return a.readAll()
	case a.sent < 3:
		return one(a, (*randomClient).put, (*randomClient).put, (*randomClient).setActions, (*randomClient).readRule)(a)
	}
	return one(a,
		(*randomClient).readAll, (*randomClient).readAll, (*randomClient).readAll,
		(*randomClient).put, (*randomClient).put, (*randomClient).put, (*randomClient).put,
		(*randomClient).remove,
		(*randomClient).setEnabled, (*randomClient).setActions,
		(*randomClient).readRule, (*randomClient).readEnabled, (*randomClient).readActions,
	)(a)
}

// readAll reads the whole set, and creates it for a user without rules.
func (a *randomClient) readAll() request {
	return request{a.user, http.MethodGet, "/pushrules/", "", func(s *userState) string {
		if !s.found {
			s.found, s.rules = true, pushrule.ServerDefault(mxid.UserID(a.user))
			s.render()
		}
		return `200 {"global":` + string(s.rules.AppendJSON(nil)) + `}`
	}}
}

// somewhere returns one of few rules, so that clients compete for it.
func (a *randomClient) somewhere() (kind pushrule.Kind, id string) {
	return one(a, pushrule.Override, pushrule.Sender), one(a, "a", "b", "c")
}

func rulePath(kind pushrule.Kind, id, rest string) string {
	return "/pushrules/global/" + string(kind) + "/" + id + rest
}

func tweak(value int) []pushrule.Action {
	return []pushrule.Action{pushrule.Action(`{"set_tweak":"n","value":` + strconv.Itoa(value) + `}`)}
}

func actionsBody(actions []pushrule.Action) string {
	return string(pushrule.AppendActions([]byte(`{"actions":`), actions)) + `}`
}

func (a *randomClient) put() request {
	kind, id := a.somewhere()
	return a.putAt(kind, id, pushrule.Position{
		Before: one(a, "", "", "", "a", "b", "c"),
		After:  one(a, "", "", "", "a", "b", "c"),
	})
}

func (a *randomClient) putAt(kind pushrule.Kind, id string, at pushrule.Position) request {
	draft := pushrule.Draft{Actions: tweak(a.value())}
	query := url.Values{"before": {at.Before}, "after": {at.After}}
	return request{a.user, http.MethodPut, rulePath(kind, id, "?"+query.Encode()), actionsBody(draft.Actions),
		ruleEdit(func(rules *pushrule.Ruleset) error { return rules.Put(kind, id, draft, at) })}
}

func (a *randomClient) remove() request {
	kind, id := a.somewhere()
	return a.removeAt(kind, id)
}

func (a *randomClient) removeAt(kind pushrule.Kind, id string) request {
	return request{a.user, http.MethodDelete, rulePath(kind, id, ""), "",
		ruleEdit(func(rules *pushrule.Ruleset) error { return rules.Delete(kind, id) })}
}

func (a *randomClient) setEnabled() request {
	kind, id := a.somewhere()
	return a.setEnabledAt(kind, id)
}

func (a *randomClient) setEnabledAt(kind pushrule.Kind, id string) request {
	enabled := one(a, true, false)
	return request{a.user, http.MethodPut, rulePath(kind, id, "/enabled"), fmt.Sprintf(`{"enabled":%t}`, enabled),
		ruleEdit(func(rules *pushrule.Ruleset) error { return rules.SetEnabled(kind, id, enabled) })}
}

func (a *randomClient) setActions() request {
	kind, id := a.somewhere()
	return a.setActionsAt(kind, id)
}

func (a *randomClient) setActionsAt(kind pushrule.Kind, id string) request {
	actions := tweak(a.value())
	return request{a.user, http.MethodPut, rulePath(kind, id, "/actions"), actionsBody(actions),
		ruleEdit(func(rules *pushrule.Ruleset) error { return rules.SetActions(kind, id, actions) })}
}

func ruleEdit(edit func(*pushrule.Ruleset) error) func(*userState) string {
	return func(s *userState) string {
		if !s.found {
			return hosttest.EventMissing
		}
		if err := edit(&s.rules); err != nil {
			return refused(err)
		}
		s.render()
		return hosttest.Done
	}
}

// refused returns the answer of an endpoint to an error of package pushrule or pusher.
func refused(err error) string {
	var f *fault.Error
	switch {
	case errors.As(err, &f) && f.Kind == fault.NotFound:
		return hosttest.Failure(http.StatusNotFound, "M_NOT_FOUND", f.Text)
	case errors.As(err, &f) && f.Kind == fault.InvalidParam:
		return hosttest.Failure(http.StatusBadRequest, "M_INVALID_PARAM", f.Text)
	}
	return "no answer for " + err.Error()
}

func (a *randomClient) readRule() request {
	kind, id := a.somewhere()
	return request{a.user, http.MethodGet, rulePath(kind, id, ""), "", ruleRead(kind, id, func(rule pushrule.Rule) string {
		return string(rule.AppendJSON(nil, kind))
	})}
}

func (a *randomClient) readEnabled() request {
	kind, id := a.somewhere()
	return request{a.user, http.MethodGet, rulePath(kind, id, "/enabled"), "", ruleRead(kind, id, func(rule pushrule.Rule) string {
		return fmt.Sprintf(`{"enabled":%t}`, rule.Enabled)
	})}
}

func (a *randomClient) readActions() request {
	kind, id := a.somewhere()
	return request{a.user, http.MethodGet, rulePath(kind, id, "/actions"), "", ruleRead(kind, id, func(rule pushrule.Rule) string {
		return actionsBody(rule.Actions)
	})}
}

func ruleRead(kind pushrule.Kind, id string, show func(pushrule.Rule) string) func(*userState) string {
	return func(s *userState) string {
		if !s.found {
			return hosttest.EventMissing
		}
		rule, found := s.rules.Rule(kind, id)
		if !found {
			return hosttest.RuleMissing
		}
		return "200 " + show(rule)
	}
}

func nextForPushers(a *randomClient) request {
	return one(a,
		(*randomClient).setPusher, (*randomClient).setPusher, (*randomClient).deletePusher,
		(*randomClient).listPushers, (*randomClient).listPushers, (*randomClient).listPushers,
	)(a)
}

func (a *randomClient) someKey() pusher.Key {
	return pusher.Key{AppID: one(a, "app", "other"), Pushkey: one(a, "a", "b") + a.user}
}

func (a *randomClient) setPusher() request { return a.setPusherAt(a.someKey()) }

func (a *randomClient) setPusherAt(key pusher.Key) request {
	p := pusher.Pusher{
		Key: key, Kind: pusher.HTTP, AppDisplayName: "App", DeviceDisplayName: strconv.Itoa(a.value()), Lang: "en",
		Data: `{"url":"https://push.example.org/_matrix/push/v1/notify"}`,
	}
	return request{a.user, http.MethodPost, "/pushers/set", string(p.AppendJSON(nil)), func(s *userState) string {
		s.pushers.Set(p)
		s.render()
		return hosttest.Done
	}}
}

func (a *randomClient) deletePusher() request { return a.deletePusherAt(a.someKey()) }

func (a *randomClient) deletePusherAt(key pusher.Key) request {
	body := fmt.Sprintf(`{"kind":null,"app_id":%q,"pushkey":%q}`, key.AppID, key.Pushkey)
	return request{a.user, http.MethodPost, "/pushers/set", body, func(s *userState) string {
		s.pushers.Delete(key)
		s.render()
		return hosttest.Done
	}}
}

func (a *randomClient) listPushers() request {
	return request{a.user, http.MethodGet, "/pushers", "", func(s *userState) string {
		return `200 {"pushers":` + string(s.pushers.AppendJSON(nil)) + `}`
	}}
}
