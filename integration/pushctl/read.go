package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// value is a node's reply for one of the module's keys.
type value struct {
	name string
	stored.Key
	state  valueState
	text   string            // of push rules and of an entry
	fields map[string]string // of a hash of pushers
	items  []string          // of a list of unread counts; the names of a log's fields
	length int64             // of an index of delivery
	expiry time.Duration     // time until Redis removes the key; negative: none
}

type valueState int

const (
	isStored    valueState = iota
	isAbsent               // the key does not exist
	isElsewhere            // the reply is MOVED or ASK, or a master has the key but does not serve it
	isOtherType            // the key has another type than the module's
	isUnread               // there was no reply; see [gaps]
)

// readValues reads the values of keys and their expiry in one pipeline. Of a log it reads the names of the fields, of an
// index of delivery its length. It skips keys of other programs and versions.
func (b *backend) readValues(ctx context.Context, from redis.UniversalClient, names []string) ([]value, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	var values []value
	var answers []redis.Cmder
	var expiries []*redis.DurationCmd
	_, _ = from.Pipelined(ctx, func(p redis.Pipeliner) error { // each reply has its own error
		for _, name := range names {
			key := b.keys.Parse(name)
			if answer := readLater(ctx, p, name, key.Kind); answer != nil {
				values, answers, expiries = append(values, value{name: name, Key: key}), append(answers, answer), append(expiries, p.PTTL(ctx, name))
			}
		}
		return nil
	})
	for i := range values {
		v := &values[i]
		err := v.fill(answers[i])
		if err == nil && v.state == isStored {
			v.expiry, err = expiries[i].Result()
		}
		if err == nil {
			continue
		}
		if err := b.skip(ctx, "values", v.name, err); err != nil {
			return nil, fmt.Errorf("read %s: %w", v.owner(), err)
		}
		v.state = isUnread
	}
	return values, nil
}

// readLater queues the command that reads a key of a kind. It returns nil for a kind that is not read.
func readLater(ctx context.Context, p redis.Pipeliner, name string, kind stored.KeyKind) redis.Cmder {
	switch kind {
	case stored.RulesKey, stored.PushkeyKey, stored.DeliveryFormatKey, stored.DeliverySummaryKey:
		return p.Get(ctx, name)
	case stored.PushersKey:
		return p.HGetAll(ctx, name)
	case stored.UnreadKey:
		return p.LRange(ctx, name, 0, -1)
	case stored.UserLogKey:
		return p.HKeys(ctx, name)
	case stored.ShardGatesKey, stored.ShardDueKey, stored.ShardFailingKey:
		return p.ZCard(ctx, name)
	}
	return nil
}

// readAnywhere reads values of some kinds from a node, or from another node if a key has just
// moved there.
func (b *backend) readAnywhere(ctx context.Context, node *redis.Client, names []string, kinds ...stored.KeyKind) ([]value, error) {
	values, err := b.readValues(ctx, node, slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.Contains(kinds, b.keys.Parse(name).Kind)
	}))
	var here []value
	var moved []string
	for _, v := range values {
		if v.state == isElsewhere {
			moved = append(moved, v.name)
		} else {
			here = append(here, v)
		}
	}
	if err != nil || len(moved) == 0 {
		return here, err
	}
	there, err := b.readValues(ctx, b.client, moved)
	for i, err := range b.elsewhere(ctx, there) {
		switch {
		case errors.Is(err, redisclient.ErrOtherMaster):
			there[i].state = isElsewhere
		case err != nil:
			return nil, err
		}
	}
	return append(here, there...), err
}

// readOfUser reads values of one user. An error, or a gap, is a value that a master has but does not serve.
func (b *backend) readOfUser(ctx context.Context, names ...string) ([]value, error) {
	values, err := b.readValues(ctx, b.client, names)
	if err != nil {
		return nil, err
	}
	for i, err := range b.elsewhere(ctx, values) {
		if err == nil {
			continue
		}
		if err := b.skip(ctx, "values", values[i].name, err); err != nil {
			return nil, fmt.Errorf("read %s: %w", values[i].owner(), err)
		}
		values[i].state = isUnread
	}
	return values, nil
}

// elsewhere returns an error for each absent value that a master has but does not serve, or may have.
func (b *backend) elsewhere(ctx context.Context, values []value) []error {
	errs := make([]error, len(values))
	var places []int
	var absent []*redisclient.Command
	for i, v := range values {
		if v.state == isAbsent {
			places, absent = append(places, i), append(absent, &redisclient.Command{Key: v.name})
		}
	}
	for n, err := range b.pipelines.Elsewhere(ctx, absent...) {
		errs[places[n]] = err
	}
	return errs
}

// fill sets the value and its state from a reply.
func (v *value) fill(answer redis.Cmder) error {
	err := answer.Err()
	_, isMoved := redis.IsMovedError(err)
	_, isAsk := redis.IsAskError(err)
	switch {
	case errors.Is(err, redis.Nil):
		v.state = isAbsent
	case isMoved || isAsk:
		v.state = isElsewhere
	case redisclient.IsWrongType(err):
		v.state = isOtherType
	case err != nil:
		return err
	}
	switch answer := answer.(type) {
	case *redis.StringCmd:
		v.text = answer.Val()
	case *redis.MapStringStringCmd:
		if v.fields = answer.Val(); len(v.fields) == 0 && err == nil {
			v.state = isAbsent
		}
	case *redis.IntCmd:
		v.length = answer.Val()
	case *redis.StringSliceCmd:
		if v.items = answer.Val(); len(v.items) == 0 && err == nil {
			v.state = isAbsent
		}
	}
	return nil
}

// owner returns the user or the digest of the pushkey that a key belongs to, or else the key.
func (v *value) owner() string {
	switch {
	case v.Kind == stored.PushkeyKey:
		return "pushkey " + string(v.Digest)
	case v.User == "":
		return v.name
	}
	return string(v.User)
}

// readEntries reads the entries of the pushkeys in hashes. A missing entry is empty. An entry that is damaged or could not
// be read is left out; see [gaps].
func (b *backend) readEntries(ctx context.Context, hashes ...stored.Hash) (map[pusher.Digest]stored.Entry, error) {
	var names []string
	for _, h := range hashes {
		for _, p := range h.Pushers.All() {
			names = append(names, b.keys.Pushkey(p.Digest()))
		}
	}
	entries := make(map[pusher.Digest]stored.Entry, len(names))
	for part := range slices.Chunk(names, pageSize) {
		values, err := b.readValues(ctx, b.client, part)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if entry, err := stored.ReadEntry(v.text); err == nil || v.state == isAbsent || v.state == isOtherType {
				entries[v.Digest] = entry
			}
		}
	}
	return entries, nil
}
