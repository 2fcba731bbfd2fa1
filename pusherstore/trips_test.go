package pusherstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/service"
)

type tripHost struct {
	trips *redistest.Trips
	module.PusherService
}

func newTripHost(t *testing.T, server *redistest.Server) tripHost {
	t.Helper()
	client := server.Client(t)
	store, err := New(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index, err := NewIndex(client, rediscommit.DefaultConfig(), rediscommit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	observer := struct{ observe.Observer }{observe.None} // wraps the stores
	services := service.New(module.Stores{Pushers: store, Pushkeys: index}, nil, service.Options{Policy: pusher.DefaultPolicy(), Observer: observer})
	return tripHost{redistest.RecordTrips(client), services.Pushers()}
}

func TestRoundTripsOfSettingAPusher(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	hosts := map[string]tripHost{"one": newTripHost(t, server), "other": newTripHost(t, server)}
	for range 2 { // so that the scripts are loaded, and the caches are empty
		for name := range hosts {
			hosts[name] = newTripHost(t, server)
			if err := hosts[name].Set(t.Context(), "@first:example.org", aPusher("first"), pusher.RemoveOthers); err != nil {
				t.Fatal(err)
			}
		}
	}
	const bob mxid.UserID = "@bob:example.org"
	for i, step := range []struct {
		host, does string
		user       mxid.UserID
		pushkey    string
		trips      int
		want       string
	}{
		{"one", "takes", alice, "a", 3, "get+hgetall evalsha evalsha"}, // a new one
		{"one", "takes", alice, "b", 3, "get+hget evalsha evalsha"},
		{"one", "takes", alice, "a", 2, "getrange+hget evalsha"}, // renewed
		{"other", "takes", alice, "a", 2, "get+hgetall evalsha"},
		{"one", "takes", alice, "a", 3, "getrange+hget hgetall evalsha"}, // the other host has written
		{"one", "lists", alice, "", 2, "hget get+get"},
		{"one", "deletes", alice, "b", 2, "evalsha evalsha"}, // the second one leaves the entry
		{"other", "appends", bob, "a", 3, "getrange+hgetall evalsha evalsha"},
		{"other", "appends", bob, "a", 2, "getrange+hget evalsha"},
		{"other", "takes", bob, "a", 6, "getrange+hget evalsha evalsha evalsha hgetall evalsha"}, // the last three remove alice's
		{"one", "lists", alice, "", 2, "hget hgetall"},
		{"one", "takes", alice, "a", 6, "getrange+hget get evalsha evalsha hgetall evalsha"}, // the other host has changed the entry, and bob's go
		{"one", "takes", alice, "a", 2, "getrange+hget evalsha"},
		{"one", "deletes", alice, "a", 2, "evalsha evalsha"},
	} {
		h := hosts[step.host]
		h.trips.Take()
		var err error
		switch step.does {
		case "appends":
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.KeepOthers)
		case "deletes":
			err = h.Delete(t.Context(), step.user, aPusher(step.pushkey).Key)
		case "lists":
			_, err = h.List(t.Context(), step.user)
		default:
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.RemoveOthers)
		}
		if sent := sideBySide(h.trips.Take()); err != nil || sent != step.want || len(strings.Fields(sent)) != step.trips {
			t.Errorf("step %d, %s %s: sent %q, %v, want %q", i, step.host, step.does, sent, err, step.want)
		}
	}
}

// sideBySide writes the reads at the beginning of a set as one trip. They may be in one
// pipeline or in two, in any order.
func sideBySide(sent []string) string {
	isOf := func(list, command string) bool { return slices.Contains(strings.Fields(list), command) }
	const entry, list = "get getrange", "hget hgetall"
	if one, other, both := strings.Cut(sent[0], "+"); both && isOf(list, one) && isOf(entry, other) {
		sent[0] = other + "+" + one
	}
	first := func(of string) int {
		return slices.IndexFunc(sent[:min(len(sent), 3)], func(command string) bool { return isOf(of, command) })
	}
	if e, l := first(entry), first(list); e >= 0 && l >= 0 {
		both := sent[e] + "+" + sent[l]
		sent = slices.Delete(slices.Clone(sent), max(e, l), max(e, l)+1)
		sent = slices.Insert(slices.Delete(sent, min(e, l), min(e, l)+1), 0, both)
	}
	return strings.Join(sent, " ")
}
