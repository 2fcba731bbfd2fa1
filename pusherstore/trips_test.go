package pusherstore

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// trips records the commands of each round trip, except the commands of a new
// connection.
type trips struct{ sent []string }

func (s *trips) add(commands ...redis.Cmder) {
	var names []string
	for _, command := range commands {
		names = append(names, command.Name())
	}
	if !slices.Contains([]string{"hello", "client"}, names[0]) {
		s.sent = append(s.sent, strings.Join(names, "+"))
	}
}

func (s *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		s.add(command)
		return next(ctx, command)
	}
}

func (s *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		s.add(commands...)
		return next(ctx, commands)
	}
}

type tripHost struct {
	*trips
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
	h := tripHost{&trips{}, module.NewService(module.Stores{Pushers: store, Pushkeys: index}, nil, module.Options{Policy: pusher.DefaultPolicy(), Observer: observer}).Pushers()}
	client.AddHook(h.trips)
	return h
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
		{"one", "sets the first", alice, "a", []string{"get", "hgetall", "evalsha", "evalsha+getrange"}},
		{"one", "sets another", alice, "b", []string{"evalsha", "evalsha+getrange"}},
		{"one", "renews", alice, "a", []string{"getrange", "hmget", "evalsha"}}, // the cache has the pusher set last
		{"one", "renews", alice, "a", []string{"getrange", "evalsha"}},
		{"other", "renews", alice, "a", []string{"get", "hmget", "evalsha"}},
		{"one", "renews", alice, "a", []string{"getrange", "evalsha", "hmget", "evalsha"}}, // the other host has written
		{"one", "deletes", alice, "b", []string{"hmget", "evalsha", "evalsha"}},
		{"other", "appends", bob, "a", []string{"getrange", "hgetall", "evalsha", "evalsha+getrange"}},
		{"one", "appends", alice, "a", []string{
			"getrange", "get", // finds a later claim
			"evalsha", "hmget+getrange", "evalsha+getrange", "evalsha+getrange", "getrange", // adds a claim, sets the pusher, releases the old claim
		}},
		{"one", "renews", alice, "a", []string{
			"getrange",                                                            // finds another user
			"evalsha", "zadd", "evalsha+getrange", "evalsha+getrange", "getrange", // adds a claim, sets the pusher, releases the old claim
			"hmget+hmget", "hmget", "evalsha", "evalsha", "evalsha", "eval", // removes the other user's pusher and its claim, and clears the pending mark
		}},
	} {
		h := hosts[step.host]
		h.sent = nil
		var err error
		switch step.does {
		case "appends":
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.KeepOthers)
		case "deletes":
			err = h.Delete(t.Context(), step.user, aPusher(step.pushkey).Key)
		default:
			err = h.Set(t.Context(), step.user, aPusher(step.pushkey), pusher.RemoveOthers)
		}
		if err != nil || !slices.Equal(h.sent, step.want) {
			t.Errorf("step %d, %s %s: sent %q, %v, want %q", i, step.host, step.does, h.sent, err, step.want)
		}
	}
}
