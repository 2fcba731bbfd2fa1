package rooms

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The outbox has a row for each event that no host has handed over yet. The rows of a room
// are in the room's slot, so that one script stores an event with its row. Sorted sets list
// the rooms that may have rows, with the time of the latest listing.
const (
	// listings is the number of sorted sets. They have different slots. If the master of a
	// room's set does not reply, another set lists the room.
	listings = 8

	// listEvery is how often a host lists a room that gets events.
	listEvery = time.Minute

	// unlistAfter is how long a room without rows stays listed. It is longer than listEvery,
	// so no host removes a room that another host counts as listed.
	unlistAfter = 10 * time.Minute

	// maxListed bounds the rooms that a host remembers as listed.
	maxListed = 10_000

	roomsAtOnce = 100 // whose rows are read in a pipeline
)

// listed remembers when this host listed rooms. It is safe for concurrent use.
type listed struct {
	mu sync.Mutex
	at map[string]time.Time
}

// isDue reports whether a room must be listed again.
func (l *listed) isDue(room string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, found := l.at[room]
	return !found || time.Since(at) >= listEvery
}

func (l *listed) add(room string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil || len(l.at) >= maxListed {
		l.at = map[string]time.Time{}
	}
	l.at[room] = at
}

var listRoom = redis.NewScript(`return redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])`)

// unlistRoom removes a room unless it was listed since the set was read.
var unlistRoom = redis.NewScript(`
if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0`)

var readRooms = redis.NewScript(`return {redis.call('TIME')[1], redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}`)

func (s *Store) listingKey(n int) string {
	return s.prefix + "outbox:{" + strconv.Itoa(n%listings) + "}"
}

func listingOf(room string) int {
	sum := fnv.New32a()
	sum.Write([]byte(room))
	return int(sum.Sum32() % listings)
}

func (s *Store) rowsKey(room string) string { return s.prefix + "outbox:{" + room + "}" }

// list lists a room in the outbox, unless this host has just done so.
func (s *Store) list(ctx context.Context, room string) error {
	if !s.listed.isDue(room) {
		return nil
	}
	began, first := time.Now(), listingOf(room)
	var err error
	for n := range listings {
		err = s.do(ctx, func(ctx context.Context) error {
			return listRoom.Run(ctx, s.client, []string{s.listingKey(first + n)}, room).Err()
		})
		if err == nil {
			s.listed.add(room, began)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// Row is a row of the outbox. A host with a database would write it in the transaction that
// stores the event.
type Row struct {
	Room, ID string // of the event
	Text     string // from [Store.Add]
}

// Rows returns the rows that are older than age, by the clock of Redis. With an error, it
// returns the rows of the masters that reply.
func (s *Store) Rows(ctx context.Context, age time.Duration) (rows []Row, err error) {
	var names []string
	var now int64
	for n := range listings {
		some, at, failed := s.listedIn(ctx, s.listingKey(n))
		names, now, err = append(names, some...), max(now, at), cmp.Or(err, failed)
	}
	slices.Sort(names)
	for some := range slices.Chunk(slices.Compact(names), roomsAtOnce) {
		of, failed := s.rowsOf(ctx, some, now-int64(age/time.Second))
		rows, err = append(rows, of...), cmp.Or(err, failed)
	}
	return rows, err
}

// listedIn returns the rooms of a listing, and the time of Redis in seconds. It removes rooms
// that were listed long ago and have no rows.
func (s *Store) listedIn(ctx context.Context, key string) (names []string, now int64, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		reply, err := readRooms.Run(ctx, s.client, []string{key}).Slice()
		if err != nil || len(reply) != 2 {
			return errors.Join(err, errNoRooms)
		}
		text, _ := reply[0].(string)
		now, _ = strconv.ParseInt(text, 10, 64)
		listing := pairs(reply[1])
		for room, at := range listing {
			names = append(names, room)
			if since, _ := strconv.ParseInt(at, 10, 64); now-since < int64(unlistAfter/time.Second) {
				delete(listing, room)
			}
		}
		return s.unlist(ctx, key, listing)
	})
	return names, now, err
}

var errNoRooms = errors.New("not a list of rooms")

// unlist removes rooms without rows from a listing. At has the time of their latest listing.
func (s *Store) unlist(ctx context.Context, key string, at map[string]string) error {
	for room, since := range at {
		n, err := s.client.HLen(ctx, s.rowsKey(room)).Result()
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if err := unlistRoom.Run(ctx, s.client, []string{key}, room, since).Err(); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf returns the rows of rooms that were written before a time in seconds.
func (s *Store) rowsOf(ctx context.Context, names []string, before int64) (rows []Row, err error) {
	replies := make([]*redis.MapStringStringCmd, len(names))
	err = s.do(ctx, func(ctx context.Context) error {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, room := range names {
				replies[i] = p.HGetAll(ctx, s.rowsKey(room))
			}
			return nil
		})
		return err
	})
	for i, room := range names {
		for id, value := range replies[i].Val() {
			written, text, _ := strings.Cut(value, " ")
			if at, err := strconv.ParseInt(written, 10, 64); err == nil && at <= before {
				rows = append(rows, Row{Room: room, ID: id, Text: text})
			}
		}
	}
	return rows, err
}

// HandedOver removes rows from the outbox.
func (s *Store) HandedOver(ctx context.Context, rows ...Row) error {
	byRoom := map[string][]string{}
	for _, r := range rows {
		byRoom[r.Room] = append(byRoom[r.Room], r.ID)
	}
	return s.do(ctx, func(ctx context.Context) error {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for room, ids := range byRoom {
				p.HDel(ctx, s.rowsKey(room), ids...)
			}
			return nil
		})
		return err
	})
}
