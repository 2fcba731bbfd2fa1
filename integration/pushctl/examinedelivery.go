package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var (
	unreadableEntry = kind{"unreadable notifications", byHost}
	unreadableState = kind{"unreadable log of notifications", byHand}
	strayShard      = kind{"index of a shard that no host looks at", byHand}
	notListed       = kind{"waiting user whom hosts do not find in time", byRepair}
)

// readFormat reads the format of the queue. Other is an error if another version of the module wrote the queue.
func (b *backend) readFormat(ctx context.Context) (isFound bool, other, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	text, err := b.client.Get(ctx, b.keys.DeliveryFormat()).Result()
	switch {
	case err == nil:
		shards, other := stored.ReadDeliveryFormat(text)
		if other == nil {
			b.queue.Index.Shards = shards
		}
		return true, other, nil
	case errors.Is(err, redis.Nil) || redisclient.IsWrongType(err):
		return false, nil, nil
	}
	return false, nil, fmt.Errorf("read %s: %w", b.keys.DeliveryFormat(), err)
}

// newExaminer returns an examiner that knows the queue.
func (b *backend) newExaminer(ctx context.Context) (*examiner, error) {
	e := &examiner{backend: b}
	hasQueue, other, err := b.readFormat(ctx)
	e.other, e.lacksIndex = other, err != nil
	err = b.skip(ctx, "the format of the queue", b.keys.DeliveryFormat(), err)
	if err == nil && other == nil && hasQueue {
		e.shards = b.queue.Index.Shards
		if err = e.readGateNames(ctx); err != nil {
			e.lacksIndex = true
			err = b.skipAt("the index of the queue", "some masters", "", err)
		}
	}
	return e, err
}

// examineIndex looks for problems of a key of the queue's index, and of the format.
func (e *examiner) examineIndex(x *examination, v value) {
	if v.Kind.OfShard() && e.shards > 0 && v.Shard >= e.shards {
		x.add(strayShard, v.name, "DEL removes it")
	}
	if v.Kind == stored.ShardDueKey || v.Kind == stored.ShardFailingKey {
		x.Entries += v.length
	}
	e.examineExpiry(x, v)
}

// examineLog reads the log of a user without texts, and looks for problems.
func (e *examiner) examineLog(ctx context.Context, x *examination, v value) error {
	var unreadable, damaged []string // fields of notifications, and others
	hasPushers := false
	fields := slices.DeleteFunc(v.items, func(field string) bool { return strings.HasPrefix(field, "=") }) // texts
	for part := range slices.Chunk(fields, pageSize) {
		answer := x.node.HMGet(ctx, v.name, part...)
		if err := v.fill(answer); err != nil {
			return fmt.Errorf("read %s: %w", v.name, err)
		}
		if v.state != isStored {
			return e.examineValue(ctx, x, v)
		}
		for i, got := range answer.Val() {
			text, isStored := got.(string)
			_, isNotification := stored.ReadEntryField(part[i])
			switch {
			case !isStored:
			case isReadable(part[i], text):
				hasPushers = hasPushers || isPusher(part[i])
			case isNotification:
				unreadable = append(unreadable, part[i])
			default:
				damaged = append(damaged, part[i])
			}
		}
	}
	if len(unreadable) > 0 {
		x.add(unreadableEntry, v.name, fmt.Sprintf("%d notifications, the first at %s", len(unreadable), printable(unreadable[0])))
	}
	if len(damaged) > 0 {
		x.add(unreadableState, v.name, printable(damaged[0]))
	}
	if hasPushers {
		x.logs = append(x.logs, v)
		e.examineExpiry(x, v)
	}
	return nil
}

// isPusher reports whether a field of a log has the state of a pusher.
func isPusher(field string) bool {
	return stored.IsPusherField(field) && field != stored.LogField && field != stored.IDsField
}

// isReadable reports whether hosts can read a field of a log.
func isReadable(field, text string) (is bool) {
	_, isNotification := stored.ReadEntryField(field)
	switch {
	case isNotification:
		e, found := stored.ReadLogEntry(text)
		_, err := content.ReadMeta(e.Meta)
		return found && err == nil
	case field == stored.LogField:
		_, is = stored.ReadLogHead(text)
	case stored.IsKeptField(field):
		_, is = stored.ReadKept(text)
	case isPusher(field):
		_, is = stored.ReadPusherState(text)
	default:
		is = field == stored.IDsField
	}
	return is
}

// maxClockSkew is the maximum difference between the clocks of two masters.
const maxClockSkew = time.Minute

// examineListings counts what waits in logs, and looks for users whom no host finds in time, if it can read the whole
// index.
func (e *examiner) examineListings(ctx context.Context, x *examination) error {
	for logs := range slices.Chunk(x.logs, pageSize) {
		keys := map[mxid.UserID]string{}
		for _, log := range logs {
			keys[log.User] = log.name
		}
		backlogs, err := e.readBacklogs(ctx, slices.Collect(maps.Keys(keys))...)
		if err != nil {
			return err
		}
		for _, b := range backlogs {
			x.Waiting += int64(b.Place.Notifications)
			if b.Place.Trouble != "" {
				x.Failing++
			}
		}
		if e.lacksIndex {
			continue
		}
		lost, entries, err := e.findLost(ctx, backlogs)
		if redisclient.IsWrongType(err) {
			continue // the key of the index is a problem of its own
		}
		if err != nil {
			return err
		}
		x.Listed += int64(entries)
		for user, pushers := range lost {
			x.suspect(keys[user], problem{
				kind: notListed, subject: string(user), detail: fmt.Sprintf("%d pushers", len(pushers)),
				repair: func(ctx context.Context) error {
					_, err := e.queue.Retry(ctx, user, pushers)
					return err
				},
			})
		}
	}
	return nil
}

// findLost returns the pushers that are due too late, or whose users are not listed in time, and the number of the users'
// entries in the index.
func (e *examiner) findLost(ctx context.Context, backlogs []backlog) (lost map[mxid.UserID][]module.PusherGate, entries int, err error) {
	byGate := map[string][]mxid.UserID{}
	for _, b := range backlogs {
		for _, gate := range b.gates(e.gateNames) {
			if !slices.Contains(byGate[gate], b.Place.User) {
				byGate[gate] = append(byGate[gate], b.Place.User)
			}
		}
	}
	listed := map[string]map[mxid.UserID]time.Time{}
	for gate, of := range byGate {
		at, n, err := e.queue.Index.Listed(ctx, gate, of)
		if err != nil {
			return nil, 0, err
		}
		listed[gate], entries = at, entries+n
	}
	lost = map[mxid.UserID][]module.PusherGate{}
	for _, b := range backlogs {
		due := time.UnixMicro(b.Until)
		latest := b.Now.Add(2 * maxClockSkew)
		if due.Add(maxClockSkew).After(latest) {
			latest = due.Add(maxClockSkew)
		}
		inTime := due.Before(b.Now.Add(channel.MaxWait + maxClockSkew))
		if inTime = inTime && slices.ContainsFunc(b.gates(e.gateNames), func(gate string) bool {
			at, found := listed[gate][b.Place.User]
			return found && at.Before(latest)
		}); !inTime {
			lost[b.Place.User] = append(lost[b.Place.User], module.PusherGate{Pusher: b.pusherID(), Gate: b.gate})
		}
	}
	return lost, entries, nil
}

// gates returns the gates at which a look finds the pusher: its own, and the gate of its state.
func (b *backlog) gates(names map[string]string) []string {
	if name, found := names[b.Place.Gate]; found && name != b.gate {
		return []string{b.gate, name}
	}
	return []string{b.gate}
}
