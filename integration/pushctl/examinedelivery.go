package main

import (
	"context"
	"errors"
	"fmt"
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

// examineDelivery looks for problems in the delivery keys. Other is not nil if another version wrote the queue; this
// version does not know the keys of that queue.
func (s *scanner) examineDelivery(ctx context.Context, node *redis.Client, x *examination, names []string, other error) error {
	var lasting []string
	logs := map[mxid.UserID]*examinedLog{}
	for _, name := range names {
		key := s.keys.Parse(name)
		if key.Kind == stored.OtherVersionKey || other != nil && key.Kind.OfDelivery() {
			if key.Kind == stored.DeliveryFormatKey {
				x.addOtherVersion(value{name: name}, other)
			} else {
				x.problems = append(x.problems, problem{kind: otherVersion, subject: name})
			}
			continue
		}
		if key.Kind.OfShard() || key.Kind == stored.DeliveryFormatKey {
			lasting = append(lasting, name)
		}
		if key.Kind.OfShard() && s.shards > 0 && key.Shard >= s.shards {
			x.problems = append(x.problems, problem{kind: strayShard, subject: name, detail: "DEL removes it"})
		}
		var err error
		switch key.Kind {
		case stored.DeliveryFormatKey, stored.DeliverySummaryKey:
			err = node.Get(ctx, name).Err()
		case stored.ShardGatesKey:
			err = node.ZCard(ctx, name).Err()
		case stored.ShardDueKey, stored.ShardFailingKey:
			var n int64
			n, err = node.ZCard(ctx, name).Result()
			x.Entries += n
		case stored.UserLogKey:
			log := &examinedLog{name: name, user: key.User}
			if err = log.read(ctx, node); err == nil && len(log.states) > 0 {
				lasting, logs[key.User] = append(lasting, name), log
			}
			x.problems = append(x.problems, log.problems()...)
			x.Waiting, x.Failing = x.Waiting+int64(log.waiting), x.Failing+int64(log.failing)
		}
		v := value{name: name, Key: key}
		if failed := v.fill(redis.NewStatusResult("", err)); failed != nil {
			return fmt.Errorf("read %s: %w", name, failed)
		}
		switch v.state {
		case isOtherType:
			x.problems = append(x.problems, problem{kind: wrongType, subject: name, detail: "DEL removes it"})
		case isElsewhere:
			s.examineValue(x, node, v)
		}
	}
	if err := s.examineListings(ctx, x, logs); err != nil {
		return err
	}
	return s.examineExpiries(ctx, node, x, lasting)
}

// examinedLog is a user's log, without texts.
type examinedLog struct {
	name       string
	user       mxid.UserID
	states     map[string]stored.PusherState
	kept       map[string]stored.Kept
	entries    []int64
	unreadable []string // fields of notifications
	damaged    []string // other fields
	waiting    int      // notifications, counted for each pusher
	failing    int      // pushers
}

func (l *examinedLog) read(ctx context.Context, node *redis.Client) error {
	fields, err := node.HKeys(ctx, l.name).Result()
	if err != nil {
		return err
	}
	fields = slices.DeleteFunc(fields, func(field string) bool { return strings.HasPrefix(field, "=") }) // texts
	l.states, l.kept = map[string]stored.PusherState{}, map[string]stored.Kept{}
	for part := range slices.Chunk(fields, pageSize) {
		values, err := node.HMGet(ctx, l.name, part...).Result()
		if err != nil {
			return err
		}
		for i, value := range values {
			if text, isStored := value.(string); isStored {
				l.add(part[i], text)
			}
		}
	}
	for pusher, s := range l.states {
		for _, n := range l.entries {
			if l.kept[stored.KeptField(pusher)].Has(s.Number, n) {
				l.waiting++
			}
		}
		if s.Trouble != "" {
			l.failing++
		}
	}
	return nil
}

func (l *examinedLog) add(field, text string) {
	if number, isEntry := stored.ReadEntryField(field); isEntry {
		e, found := stored.ReadLogEntry(text)
		if _, err := content.ReadMeta(e.Meta); !found || err != nil {
			l.unreadable = append(l.unreadable, field)
		}
		l.entries = append(l.entries, number)
		return
	}
	isRead := false
	switch {
	case field == stored.LogField:
		_, isRead = stored.ReadLogHead(text)
	case field == stored.IDsField, field == "#unconfirmed": // the latter is of a development version, and ignored
		isRead = true
	case stored.IsKeptField(field):
		l.kept[field], isRead = stored.ReadKept(text)
	case stored.IsPusherField(field):
		var s stored.PusherState
		if s, isRead = stored.ReadPusherState(text); isRead {
			l.states[field] = s
		}
	}
	if !isRead {
		l.damaged = append(l.damaged, field)
	}
}

func (l *examinedLog) problems() (all []problem) {
	if len(l.unreadable) > 0 {
		all = append(all, problem{kind: unreadableEntry, subject: l.name, detail: fmt.Sprintf("%d notifications, the first at %s", len(l.unreadable), printable(l.unreadable[0]))})
	}
	if len(l.damaged) > 0 {
		all = append(all, problem{kind: unreadableState, subject: l.name, detail: printable(l.damaged[0])})
	}
	return all
}

// maxClockSkew is the maximum difference between the clocks of two masters.
const maxClockSkew = time.Minute

// examineListings looks for users whom no host finds in time, if it can read the whole index.
func (s *scanner) examineListings(ctx context.Context, x *examination, logs map[mxid.UserID]*examinedLog) error {
	if s.lacksIndex {
		return nil
	}
	users := make([]mxid.UserID, 0, len(logs))
	for user := range logs {
		users = append(users, user)
	}
	for part := range slices.Chunk(users, pageSize) {
		found, entries, err := s.findLost(ctx, part)
		if err != nil {
			return err
		}
		x.Listed += int64(entries)
		for user, pushers := range found {
			x.unconfirmed = append(x.unconfirmed, problem{
				kind: notListed, subject: string(user), detail: fmt.Sprintf("%d pushers", len(pushers)),
				recheck: func(ctx context.Context) (bool, error) {
					found, _, err := s.findLost(ctx, []mxid.UserID{user})
					return len(found) > 0, err
				},
				repair: func(ctx context.Context) error {
					_, err := s.queue.Retry(ctx, user, pushers)
					return err
				},
			})
		}
	}
	return nil
}

// findLost returns the pushers that are due too late, or whose users are not listed in time, and the number of the users'
// entries in the index.
func (s *scanner) findLost(ctx context.Context, users []mxid.UserID) (lost map[mxid.UserID][]module.PusherGate, entries int, err error) {
	backlogs, err := s.readBacklogs(ctx, users...)
	if err != nil {
		return nil, 0, err
	}
	byGate := map[string][]mxid.UserID{}
	names := s.gateNames // by digest
	for _, b := range backlogs {
		for _, gate := range b.gates(names) {
			if !slices.Contains(byGate[gate], b.Place.User) {
				byGate[gate] = append(byGate[gate], b.Place.User)
			}
		}
	}
	listed := map[string]map[mxid.UserID]time.Time{}
	for gate, of := range byGate {
		at, n, err := s.queue.Index.Listed(ctx, gate, of)
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
		if inTime = inTime && slices.ContainsFunc(b.gates(names), func(gate string) bool {
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
