package pusherstore

import (
	"slices"
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
		want       []string
	}{
		{"one", "sets the first", alice, "a", []string{"get", "hgetall", "evalsha", "evalsha", "getrange"}},
		{"one", "sets another", alice, "b", []string{"get", "hget", "evalsha", "evalsha", "getrange"}},
		{"one", "renews", alice, "a", []string{"getrange", "evalsha"}},
		{"other", "renews", alice, "a", []string{"get", "hgetall", "evalsha"}},
		{"one", "renews", alice, "a", []string{"getrange", "evalsha", "hgetall", "evalsha"}}, // the other host has written
		{"one", "deletes", alice, "b", []string{"evalsha", "evalsha"}},
		{"other", "appends", bob, "a", []string{"getrange", "hgetall", "evalsha", "evalsha", "getrange"}},
		{"one", "appends", alice, "a", []string{
			"getrange", "get", // finds a later claim
			"evalsha", "evalsha", "evalsha", "getrange", // adds a claim, sets the pusher, releases the old claim
		}},
		{"one", "renews", alice, "a", []string{
			"getrange",                                          // finds another user
			"evalsha", "zadd", "evalsha", "evalsha", "getrange", // adds a claim, sets the pusher, releases the old claim
			"hgetall+hgetall", "hgetall", "evalsha", "evalsha", "evalsha", "eval", // removes the other user's pusher and its claim, and clears the pending mark
		}},
	} {
		h := hosts[step.host]
		h.trips.Take()
		var err error
		switch step.does {
		case "appends":
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.KeepOthers)
		case "deletes":
			err = h.Delete(t.Context(), step.user, aPusher(step.pushkey).Key)
		default:
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.RemoveOthers)
		}
		if sent := h.trips.Take(); err != nil || !slices.Equal(sent, step.want) {
			t.Errorf("step %d, %s %s: sent %q, %v, want %q", i, step.host, step.does, sent, err, step.want)
		}
	}
}
