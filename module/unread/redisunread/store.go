// Package redisunread is a [module.UnreadStore] on Redis; its API may change at any time.
// Each user has a list, in the slot of the user's pushers. It needs Redis 6.2 or later: a
// single node, sentinels or a cluster.
package redisunread

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

var _ module.UnreadStore = (*Store)(nil)

const name = "unread store" // in errors

// maxPipeline bounds the writes of one pipeline, so that other requests do not wait for
// a long one.
const maxPipeline = 500

// Store is a [module.UnreadStore] on Redis. It is safe for concurrent use, does no I/O in
// the background, and needs no closing.
type Store struct {
	keys      stored.Keys
	lists     *rediscommit.Users[struct{}, string] // for reads and deletions
	writer    *rediscommit.Writer
	pipelines *redisclient.Pipelines
}

// New does no I/O. Client is a *redis.Client or a *redis.ClusterClient that reads from
// masters; the caller closes it.
func New(client redis.UniversalClient, cfg rediscommit.Config, o rediscommit.Options) (*Store, error) {
	o.Pipelines = o.PipelinesOn(client)
	lists, err := rediscommit.New(client, cfg, o, rediscommit.Codec[struct{}, string]{
		Name: name, Observed: observe.Unread, Unreadable: unreadable,
		Read: rediscommit.Query[commit.Snapshot[struct{}, string]]{},
	})
	if err != nil {
		return nil, err
	}
	writer, err := rediscommit.NewWriter(client, name, observe.Unread, cfg, o)
	if err != nil {
		return nil, err
	}
	return &Store{
		keys: stored.Keys{Prefix: cfg.KeyPrefix}, lists: rediscommit.NewUsers(lists, stored.Keys{}.Unread),
		writer: writer, pipelines: o.Pipelines,
	}, nil
}

func unreadable(cause error) error {
	return fault.Wrap(fault.Database, "The stored unread counts cannot be read.", cause)
}

// Partition returns the users of each master; see [module.UnreadStore].
func (s *Store) Partition(ctx context.Context, users []mxid.UserID) [][]mxid.UserID {
	return rediscommit.Partition(ctx, s.pipelines, users, s.keys.Unread)
}

// push is a text on its way to a list.
type push struct {
	key, text string
	begins    bool // the list may be missing
	length    int
}

func (p *push) command() *redisclient.Command {
	return &redisclient.Command{Key: p.key, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
		do := to.RPushX
		if p.begins {
			do = to.RPush
		}
		reply := do(ctx, p.key, p.text)
		return func() error {
			p.length = int(reply.Val())
			return reply.Err()
		}
	}}
}

// Append appends texts; see [module.UnreadStore].
func (s *Store) Append(ctx context.Context, texts []module.UserText) []module.Result[int] {
	pushes, lengths := make([]push, len(texts)), make([]module.Result[int], len(texts))
	send := func(ctx context.Context, places []int, commands []*redisclient.Command) []error {
		return s.push(ctx, pushes, places, commands)
	}
	sendAll(ctx, send, texts, func(i int) (*redisclient.Command, error) {
		key, err := s.key(texts[i].User)
		if stored.IsUnreadDigest(texts[i].Text) {
			err = errors.Join(err, errors.New(name+": a text that has the form of a digest"))
		}
		pushes[i] = push{key: key, text: texts[i].Text}
		return pushes[i].command(), err
	}, func(i int, err error) {
		if lengths[i].Err = err; err == nil { // after an error, the push may still be running
			lengths[i].Value = pushes[i].length
		}
	})
	return lengths
}

// push appends texts to lists. It begins a missing list only if no other master has it:
// otherwise the new list would hide the older one, which an interrupted move of its slot
// has left there. Places has the index in pushes of each command.
func (s *Store) push(ctx context.Context, pushes []push, places []int, commands []*redisclient.Command) []error {
	errs := s.writer.DoDurably(ctx, commands...)
	var missing []int
	var again []*redisclient.Command
	for n, i := range places {
		if errs[n] == nil && pushes[i].length == 0 {
			missing, again = append(missing, n), append(again, commands[n])
		}
	}
	if len(missing) == 0 {
		return errs
	}
	otherMasters := s.pipelines.Elsewhere(ctx, again...)
	for k, n := range missing {
		// After an error, the list may have begun or moved since the first try.
		pushes[places[n]].begins = otherMasters[k] == nil
	}
	for k, err := range s.writer.DoDurably(ctx, again...) {
		n := missing[k]
		if errs[n] = err; err == nil && pushes[places[n]].length == 0 {
			errs[n] = module.Unavailable(fmt.Errorf("%s: %w", name, otherMasters[k]))
		}
	}
	return errs
}

var readTexts = rediscommit.Query[[]string]{
	Ask: func(ctx context.Context, client redis.Cmdable, key string) redis.Cmder {
		return client.LRange(ctx, key, 0, -1)
	},
	Read: func(_ string, answer redis.Cmder) ([]string, error) {
		items, err := answer.(*redis.StringSliceCmd).Result()
		return stored.UnreadTexts(items), err
	},
	IsMissing: func(texts []string) bool { return len(texts) == 0 },
}

// Load reads lists; see [module.UnreadStore].
func (s *Store) Load(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[[]string] {
	loaded := rediscommit.ReadMany(ctx, s.lists, users, readTexts)
	for user, list := range loaded {
		if errors.Is(list.Err, redisclient.ErrOtherMaster) {
			loaded[user] = module.Result[[]string]{Err: unreadable(list.Err)}
		}
	}
	return loaded
}

// replace replaces the first texts of a list, if they are still the same. It also replies
// 1 if it has replaced them already, since a client repeats it after a lost reply. Redis
// hashes each byte of a text that is in Lua. So the script does not read an old record:
// it compares the digest that follows the record. Within the script, the list is never
// empty: while its slot moves, Redis refuses to create a missing key, and keeps what the
// script has done before.
//
// ARGV: the number of the old texts; their digest; the same with the record's digest in
// the record's place; the digest of the new record; the new record.
var replace = redisclient.NewScript(`
local second = redis.call('LINDEX', KEYS[1], 1) or ''
local from = 0
if #second == #ARGV[4] and string.sub(second, 1, 2) == string.sub(ARGV[4], 1, 2) then from = 1 end
local first, lengths = redis.call('LRANGE', KEYS[1], from, from + ARGV[1] - 1), {}
for i, text in ipairs(first) do lengths[i] = '\n' .. #text end
first[#first + 1] = table.concat(lengths)
if redis.sha1hex(table.concat(first)) ~= ARGV[2 + from] then return second == ARGV[4] and 1 or 0 end
if redis.call('LINDEX', KEYS[1], from + ARGV[1]) then
	redis.call('LTRIM', KEYS[1], from + ARGV[1], -1)
	redis.call('LPUSH', KEYS[1], ARGV[4], ARGV[5])
else
	redis.call('LPUSH', KEYS[1], ARGV[4], ARGV[5])
	redis.call('LTRIM', KEYS[1], 0, 1)
end
return 1`)

// Replace replaces the first texts of lists; see [module.UnreadStore].
func (s *Store) Replace(ctx context.Context, all []module.UnreadReplacement) []module.Result[bool] {
	done := make([]module.Result[bool], len(all))
	// A replacement need not be durable: a lost one is made again.
	send := func(ctx context.Context, _ []int, commands []*redisclient.Command) []error {
		return s.writer.Do(ctx, commands...)
	}
	sendAll(ctx, send, all, func(i int) (*redisclient.Command, error) {
		r := all[i]
		key, err := s.key(r.User)
		if len(r.First) == 0 {
			err = errors.Join(err, errors.New(name+": a replacement of no texts"))
		}
		if err != nil {
			return nil, err
		}
		call := replace.Call([]string{key}, replacement(r)...)
		return &redisclient.Command{Key: key, IsSingle: true, Queue: func(ctx context.Context, to redisclient.Sender) func() error {
			check := call.Queue(ctx, to)
			return func() (err error) {
				if err = check(); err == nil {
					done[i].Value, err = call.Reply.Bool()
				}
				return err
			}
		}}, nil
	}, func(i int, err error) { done[i].Err = err })
	return done
}

// replacement returns the arguments of replace.
func replacement(r module.UnreadReplacement) []any {
	behind := slices.Clone(r.First)
	behind[0] = stored.UnreadDigest(behind[0])
	return []any{len(r.First), digest(r.First), digest(behind), stored.UnreadDigest(r.By), r.By}
}

// digest is the SHA-1 of the texts and their lengths.
func digest(texts []string) string {
	sum, lengths := sha1.New(), []byte(nil)
	for _, text := range texts {
		_, _ = io.WriteString(sum, text)
		lengths = strconv.AppendInt(append(lengths, '\n'), int64(len(text)), 10)
	}
	_, _ = sum.Write(lengths)
	return hex.EncodeToString(sum.Sum(nil))
}

// Delete removes a list; see [module.UnreadStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.lists.Remove(ctx, user)
}

func (s *Store) key(user mxid.UserID) (string, error) {
	if err := user.Validate(); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return s.keys.Unread(user), nil
}

// sendAll sends the writes in pipelines of bounded length, and passes each one's error to
// end. If all writes of a pipeline are unavailable, the later ones fail without a try.
func sendAll[T any](
	ctx context.Context, send func(ctx context.Context, places []int, commands []*redisclient.Command) []error, all []T,
	write func(i int) (*redisclient.Command, error), end func(i int, err error),
) {
	var down error
	for from := 0; from < len(all); from += maxPipeline {
		var writes []*redisclient.Command
		var places []int
		for i := from; i < min(from+maxPipeline, len(all)); i++ {
			w, err := write(i)
			if err = errors.Join(err, down); err != nil {
				end(i, err)
				continue
			}
			writes, places = append(writes, w), append(places, i)
		}
		errs := send(ctx, places, writes)
		for n, err := range errs {
			switch {
			case redisclient.IsWrongType(err):
				err = unreadable(errors.New("the key holds another type of value"))
			case errors.Is(err, redisclient.ErrOtherMaster):
				err = unreadable(err)
			}
			errs[n] = err
			end(places[n], err)
		}
		if len(errs) > 1 && !slices.ContainsFunc(errs, func(err error) bool { return fault.KindOf(err) != fault.Unavailable }) {
			down = errs[0]
		}
	}
}
