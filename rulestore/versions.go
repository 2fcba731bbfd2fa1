package rulestore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
)

// tailBytes is how much of the end of an event is read to find its revision,
// which is rarely longer than half of it.
const tailBytes = 1 << 10

// Versions returns the versions of many users' rules; see [module.RuleStore]. It
// reads the end of each event, and the whole of those that have no revision
// there.
func (s *Store) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	all := make(map[mxid.UserID]module.Result[int64], len(users))
	var others []mxid.UserID
	for user, tail := range rediscommit.ReadMany(ctx, s.events, users, readTail) {
		version := versionAtEnd(tail.Value)
		switch {
		case tail.Err != nil, tail.Value == "", version > 0:
			all[user] = module.Result[int64]{Value: version, Err: tail.Err}
		default:
			others = append(others, user)
		}
	}
	for user, loaded := range s.LoadMany(ctx, others) {
		all[user] = module.Result[int64]{Value: loaded.Value.Version, Err: loaded.Err}
	}
	return all
}

func readTail(ctx context.Context, client redis.Cmdable, key string) func() (string, error) {
	return client.GetRange(ctx, key, -tailBytes, -1).Result
}

// versionAtEnd returns the version in the revision that an event ends with, 0 if
// there is none. That the rest is JSON makes the revision a member of the event:
// the quotes within a string are escaped, and one brace closes no more than the
// event.
func versionAtEnd(tail string) int64 {
	const member = `,"` + stampMember + `":`
	at := strings.LastIndex(tail, member)
	stamp, closed := strings.CutSuffix(tail, closing)
	if at < 0 || !closed {
		return 0
	}
	return commit.ReadStamp(stamp[at+len(member):]).Version
}

// isForeign is set in versions of events that somebody else wrote. Those that the
// module writes are too small for it.
const isForeign = 1 << 62

// foreignVersion returns the version of an event that has no revision of the
// module. It is another one for every text, on every host the same one, and none
// that the module gives.
func foreignVersion(text string) int64 {
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:])&(isForeign-1) | isForeign)
}
