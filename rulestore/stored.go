package rulestore

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/stored"
)

func userOf(key string) string {
	return key[strings.IndexByte(key, '{')+1 : strings.LastIndexByte(key, '}')]
}

// swapScript replaces the event if the old one is still stored. A host without the
// right to publish can make changes, too.
//
// ARGV: the new event; the channel; the message, empty for none; the old event, see
// [rediscommit.CompareArgs].
var swapScript = `
if ARGV[5] then
	if not (` + rediscommit.HasSuffix(4) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1`

type encoder struct{ channel string }

type snapshot = commit.Snapshot[stored.Event, string]

func newCodec(e encoder) rediscommit.Codec[stored.Event, string] {
	return rediscommit.Codec[stored.Event, string]{
		Name:     "rulestore",
		Observed: observe.PushRules,
		Read: rediscommit.Query[snapshot]{
			Ask:  func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder { return client.Get(ctx, key) },
			Read: readEvent,
		},
		Current:    rediscommit.TextCurrent[stored.Event],
		Same:       isSame,
		Swap:       swapScript,
		Prepare:    e.prepare,
		Bytes:      rediscommit.TextBytes[stored.Event],
		Unreadable: pushrule.Unreadable,
	}
}

func readEvent(_ string, answer redis.Cmder) (snapshot, error) {
	text, found, err := rediscommit.Text(answer)
	if err != nil || !found {
		return snapshot{}, err
	}
	e, err := stored.ReadEvent(text)
	return snapshot{Found: true, Value: e, Revision: e.Revision, Raw: text}, err
}

// isSame compares only the rules, because edits do not change the rest.
func isSame(old snapshot, next stored.Event) bool {
	return old.Value.Found && old.Value.Rules.Equal(next.Rules)
}

func (e encoder) prepare(u commit.Update[stored.Event, string]) rediscommit.Swap[stored.Event, string] {
	text, message := u.Next.Text(u.Revision), ""
	if u.Revision.Version != u.Old.Revision.Version {
		message = stored.Message(mxid.UserID(userOf(u.Key)), u.Revision.Version)
	}
	swap := rediscommit.Swap[stored.Event, string]{
		Args: append([]any{text, e.channel, message}, rediscommit.CompareArgs(u.Old)...),
		Now:  snapshot{Found: true, Value: u.Next, Revision: u.Revision, Raw: text},
	}
	swap.Now.Value.Revision = u.Revision
	swap.Now.Value.Share(text)
	return swap
}
