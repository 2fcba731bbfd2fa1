package rooms

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// maxReceipts bounds the receipts of a user. A user has one for each kind and thread.
const maxReceipts = 2000

// Receipt says that a user has read up to an event.
type Receipt struct {
	Kind   string // m.read or m.read.private
	Thread string // empty for all threads
	Event  string
	Time   time.Time
}

// setReceipt stores a receipt, unless the stored receipt is for the same or a later event, or the user has too many
// receipts.
var setReceipt = redis.NewScript(`
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old and tonumber(string.match(old, '^%d+')) >= tonumber(ARGV[2]) then return 0 end
if not old and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
return 1`)

func (s *Store) receiptsKey(user mxid.UserID) string {
	return s.prefix + "receipts:{" + string(user) + "}"
}

// SetReceipt stores a user's receipt for an event.
func (s *Store) SetReceipt(ctx context.Context, user mxid.UserID, room string, e Event, kind, thread string) error {
	field := room + " " + kind + " " + thread
	return s.do(ctx, func(ctx context.Context) error {
		return setReceipt.Run(ctx, s.client, []string{s.receiptsKey(user)}, field, e.Position, time.Now().UnixMilli(), e.ID, maxReceipts).Err()
	})
}

// Receipts returns a user's receipts by room.
func (s *Store) Receipts(ctx context.Context, user mxid.UserID) (map[string][]Receipt, error) {
	var fields map[string]string
	err := s.do(ctx, func(ctx context.Context) (err error) {
		fields, err = s.client.HGetAll(ctx, s.receiptsKey(user)).Result()
		return err
	})
	all := map[string][]Receipt{}
	for field, value := range fields {
		of, to := strings.SplitN(field, " ", 3), strings.SplitN(value, " ", 3)
		if len(of) != 3 || len(to) != 3 {
			return nil, fmt.Errorf("host: a stored receipt: %s", field)
		}
		millis, _ := strconv.ParseInt(to[1], 10, 64)
		all[of[0]] = append(all[of[0]], Receipt{of[1], of[2], to[2], time.UnixMilli(millis)})
	}
	return all, err
}

// MaxDepth is the maximum of depth in [Store.Relations].
const MaxDepth = maxHops

// Relations returns the visible events of a room that relate to an event, directly or through other events, the newest
// first. Depth is the maximum number of relations from a returned event to that event.
func (s *Store) Relations(ctx context.Context, room, root string, depth int) (related []Event, err error) {
	all, _, err := s.Timeline(ctx, room, keptEvents)
	depths := map[string]int{root: 0}
	for _, e := range all { // an event comes after the event that it relates to
		if at, found := depths[e.Parent]; found && at < depth {
			depths[e.ID], related = at+1, append(related, e)
		}
	}
	slices.Reverse(related)
	return related, err
}
