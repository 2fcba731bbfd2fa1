package rooms

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The outbox has a row for each event that no host has handed over yet. The rows of a room
// are in the room's slot, so that one script stores an event with its row. Hashes list the
// rooms that ever had rows.
const (
	// listings is the number of hashes. They have different slots. If the master of a
	// room's hash does not reply, another hash lists the room.
	listings = 8

	// listEvery is how often a host lists a room that gets events, in case Redis lost the hash.
	listEvery = time.Minute

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
			return s.client.HSet(ctx, s.listingKey(first+n), room, "").Err()
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
	Position int64
	Text     string // from [Store.Add] or [Store.Keep]
}

// Rows returns the rows that are older than age, by the clock of Redis: those of a room in the
// order of its events. With an error, it returns the rows of the masters that reply.
func (s *Store) Rows(ctx context.Context, age time.Duration) (rows []Row, err error) {
	var names []string
	for n := range listings {
		err = cmp.Or(err, s.do(ctx, func(ctx context.Context) error {
			some, err := s.client.HKeys(ctx, s.listingKey(n)).Result()
			names = append(names, some...)
			return err
		}))
	}
	slices.Sort(names)
	for some := range slices.Chunk(slices.Compact(names), roomsAtOnce) {
		of, failed := s.rowsOf(ctx, some, age)
		rows, err = append(rows, of...), cmp.Or(err, failed)
	}
	return rows, err
}

// readRows returns the time of Redis in seconds, and the rows of a room.
var readRows = redis.NewScript(`return {redis.call('TIME')[1], redis.call('HGETALL', KEYS[1])}`)

// rowsOf returns the rows of rooms that are older than age.
func (s *Store) rowsOf(ctx context.Context, names []string, age time.Duration) (rows []Row, err error) {
	replies := make([]*redis.Cmd, len(names))
	err = s.do(ctx, func(ctx context.Context) error {
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, room := range names {
				replies[i] = readRows.Eval(ctx, p, []string{s.rowsKey(room)})
			}
			return nil
		})
		return err
	})
	for i, room := range names {
		reply, _ := replies[i].Slice()
		if len(reply) < 2 {
			continue // of a lost master
		}
		now, _ := strconv.ParseInt(fmt.Sprint(reply[0]), 10, 64)
		for id, value := range pairs(reply[1]) {
			r := Row{Room: room, ID: id}
			var at int64
			if n, err := fmt.Sscan(value, &at, &r.Position); err != nil || n < 2 || now-at < int64(age/time.Second) {
				continue
			}
			r.Text = strings.SplitN(value, " ", 3)[2]
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Room, b.Room), cmp.Compare(a.Position, b.Position))
	})
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

// keepRow replaces the text of a row, unless another host has replaced or removed it. ARGV: the event's id, the text
// after the time, and the new one.
var keepRow = redis.NewScript(`
local old = redis.call('HGET', KEYS[1], ARGV[1])
local time, rest = string.match(old or '', '^(%d+ )(.*)$')
if rest ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], time .. ARGV[3])
return 1`)

// Keep replaces the text of a row, unless another host has changed the row since it was read.
func (s *Store) Keep(ctx context.Context, r Row, text string) error {
	position := strconv.FormatInt(r.Position, 10) + " "
	return s.do(ctx, func(ctx context.Context) error {
		return keepRow.Run(ctx, s.client, []string{s.rowsKey(r.Room)}, r.ID, position+r.Text, position+text).Err()
	})
}
