package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

// expiringKey is the problem of a key that Redis will remove with its data.
var expiringKey = kind{"key that expires", byRepair}

// examineExpiry reports a value that expires and should not. Of these values, the module lets only hashes without
// pushers and most entries expire.
func (b *backend) examineExpiry(x *examination, v value) {
	if v.expiry < 0 || v.mayExpire() {
		return
	}
	// A host may have emptied the value between the two commands.
	p := b.expiring(x, v.name, v.expiry)
	p.recheck = func(ctx context.Context) (bool, error) {
		values, err := b.readExpiring(ctx, b.client, []string{v.name})
		return err == nil && values[0].expiry >= 0 && !values[0].mayExpire(), err
	}
	x.unconfirmed = append(x.unconfirmed, p)
}

// mayExpire reports whether the module lets a value expire.
func (v *value) mayExpire() bool {
	switch v.Kind {
	case stored.PushersKey:
		h := stored.ReadHash(v.fields)
		return h.Err == nil && h.Pushers.Len() == 0
	case stored.PushkeyKey:
		entry, err := stored.ReadEntry(v.text)
		return err == nil && !entry.Lasts()
	}
	return false
}

// examineExpiries reports keys that expire, among keys whose values are not read here. None of these keys may expire.
func (b *backend) examineExpiries(ctx context.Context, node *redis.Client, x *examination, names []string) error {
	answers := make([]*redis.DurationCmd, len(names))
	_, _ = node.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for i, name := range names {
			answers[i] = p.PTTL(ctx, name)
		}
		return nil
	})
	for i, answer := range answers {
		v := value{name: names[i]}
		if err := v.fill(answer); err != nil {
			return fmt.Errorf("read the expiry of %s: %w", names[i], err)
		}
		if v.state == isStored && answer.Val() >= 0 {
			x.problems = append(x.problems, b.expiring(x, names[i], answer.Val()))
		}
	}
	return nil
}

func (b *backend) expiring(x *examination, name string, after time.Duration) problem {
	return problem{
		kind: expiringKey, subject: name, detail: "at " + timeOf(x.now.Add(after).UnixMicro()),
		repair: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, replyTimeout)
			defer cancel()
			return b.client.Persist(ctx, name).Err()
		},
	}
}
