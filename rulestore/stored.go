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

// userOf returns the user of a key. No prefix has a brace.
func userOf(key string) string {
	return key[strings.IndexByte(key, '{')+1 : strings.LastIndexByte(key, '}')]
}

// swapScript replaces the event and publishes that it did. A server that does
// not let the host publish does not keep it from changing anything.
//
// ARGV: the new event, the channel and the message, which is empty for what is
// no change, and the end of the event as it was read, or the whole of it, which are
// left out if there was none.
var swapScript = `
if ARGV[5] then
	if not (` + rediscommit.HasSuffix(4) + `) then return 0 end
elseif redis.call('GET', KEYS[1]) ~= (ARGV[4] or false) then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[3]) end
return 1`

// codec keeps the event of each user as it is stored.
type codec struct {
	largeBytes int
	channel    string
}

type snapshot = commit.Snapshot[stored.Event, string]

func (c codec) describe() rediscommit.Codec[stored.Event, string] {
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
		Prepare:    c.prepare,
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

// isSame compares the rules, since an edit changes nothing else in an event.
func isSame(old snapshot, next stored.Event) bool {
	return old.Value.Found && old.Value.Rules.Equal(next.Rules)
}

// prepare never refuses: the service limits the size of rules.
func (c codec) prepare(u commit.Update[stored.Event, string]) rediscommit.Swap[stored.Event, string] {
	text, message := u.Next.Text(u.Revision), ""
	if u.Revision.Version != u.Old.Revision.Version {
		message = stored.Message(mxid.UserID(userOf(u.Key)), u.Revision.Version)
	}
	swap := rediscommit.Swap[stored.Event, string]{
		Args: append([]any{text, c.channel, message}, rediscommit.CompareArgs(u.Old)...),
		Now:  snapshot{Found: true, Value: u.Next, Revision: u.Revision, Raw: text},
	}
	swap.Now.Value.Revision = u.Revision
	swap.Now.Value.Share(text)
	if end, found := rediscommit.SuffixOf(u.Old.Raw, u.Old.Revision); found && max(len(text), len(u.Old.Raw)) >= c.largeBytes {
		swap.Staged = &rediscommit.StagedSwap{Old: end, New: text, Channel: c.channel, Message: message}
	}
	return swap
}
