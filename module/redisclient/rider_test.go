package redisclient

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func get(key string) *Command {
	return &Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error { return to.Get(ctx, key).Err }}
}

func TestRiderCountsOnlyBehindASuccessfulCommand(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Single(t))
	client := proxy.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	p, others := NewPipelines(client, nil), NewPipelines(proxy.Client(t), nil)
	incr := func(check error) *Command {
		return &Command{Key: "n", IsSingle: true, Queue: func(ctx context.Context, to Sender) func() error {
			sent := to.Incr(ctx, "n")
			return func() error { return errors.Join(sent.Err(), check) }
		}}
	}
	write := func(on *Pipelines, check error) func(context.Context) {
		return func(ctx context.Context) { on.Do(ctx, Kind{}, incr(check)) }
	}
	for name, test := range map[string]struct {
		do   []func(context.Context)
		lose bool
		want string // the reply to the rider
	}{
		"nothing is sent":                 {},
		"a write":                         {do: []func(context.Context){write(p, nil)}, want: "1"},
		"the latest of two writes":        {do: []func(context.Context){write(p, nil), write(p, nil)}, want: "2"},
		"a read of a missing key":         {do: []func(context.Context){write(others, nil), func(ctx context.Context) { p.Do(ctx, Kind{IsRead: true}, get("none")) }}, want: "1"},
		"a write that changes nothing":    {do: []func(context.Context){write(p, nil), write(p, ErrReplied)}},
		"a write with a lost reply":       {do: []func(context.Context){write(p, nil)}, lose: true},
		"a write by another client":       {do: []func(context.Context){write(others, nil)}},
		"two commands on different nodes": {do: []func(context.Context){func(ctx context.Context) { p.Do(ctx, Kind{IsRead: true}, get("a"), get("b")) }}},
	} {
		client.Del(t.Context(), "n")
		reply := ""
		ctx, rider := p.WithRider(t.Context(), func() *Command {
			return &Command{Key: "n", Queue: func(ctx context.Context, to Sender) func() error {
				sent := to.Get(ctx, "n")
				return func() error {
					reply = sent.Val()
					return sent.Err()
				}
			}}
		})
		if test.lose {
			proxy.CutReply(1, "INCR")
		}
		for _, do := range test.do {
			do(ctx)
		}
		if replied, err := rider.Replied(); replied != (test.want != "") || replied && (err != nil || reply != test.want) {
			t.Errorf("%s: replied %t with %q, %v, want %q", name, replied, reply, err, test.want)
		}
	}
}

// The pipeline of an abandoned command may still write to the rider.
func TestRiderOfAnAbandonedCommandHasNoAnswer(t *testing.T) {
	t.Parallel()
	l := newLane(t, true, nil)
	ctx, cancel := context.WithCancel(t.Context())
	riding, rider := l.pipelines.WithRider(ctx, func() *Command { return get("n") })
	l.pipelines.Do(riding, Kind{}, &Command{Key: "n", IsLarge: true, Queue: func(ctx context.Context, to Sender) func() error {
		return to.Set(ctx, "n", 1, 0).Err
	}})
	if replied, err := rider.Replied(); !replied || err != nil {
		t.Errorf("before: replied %t, %v", replied, err)
	}
	l.begin(riding, "abandoned", func(error) {})
	l.waitFor(t, 1)
	cancel()
	close(l.opens)
	l.running.Wait()
	if replied, _ := rider.Replied(); replied {
		t.Error("after a command that was abandoned, the rider has an answer")
	}
}
