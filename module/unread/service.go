// Package unread counts each user's unread notifications; except [Config], its API may
// change at any time. It appends an operation to the user's list for each notification,
// receipt and redaction, and folds the list when it is read; see package fold.
package unread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/internal/partition"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/retry"
	"github.com/pushfx/pushfx/module/unread/fold"
)

var _ module.UnreadService = (*Service)(nil)

// Config configures unread counts. All hosts of the same users should have the same.
type Config struct {
	// CountNotifications makes badges show the number of unread notifications instead of
	// the number of rooms with unread notifications. Default false.
	CountNotifications bool
}

// Service is a [module.UnreadService]. It is safe for concurrent use, does no I/O in the
// background, and caches nothing.
type Service struct {
	store    module.UnreadStore
	cfg      Config
	maxAge   time.Duration
	now      func() time.Time
	observer observe.Observer

	add, read, forget, rooms, retain, list, states *observe.Operation
}

// New returns a service. MaxAge is the age at which notifications expire: redactions are
// known for as long. Now is the clock of the stores, on which all hosts agree; nil means
// the host's clock. Observer may be nil.
func New(store module.UnreadStore, cfg Config, maxAge time.Duration, now func() time.Time, observer observe.Observer) *Service {
	if now == nil {
		now = time.Now
	}
	of := func(verb string) *observe.Operation {
		return &observe.Operation{Kind: observe.Store, Name: observe.Unread, Verb: verb}
	}
	return &Service{
		store: store, cfg: cfg, maxAge: maxAge, now: now, observer: observe.Or(observer),
		add: of("add"), read: of("read"), forget: of("forget"), rooms: of("rooms"), retain: of("retain"), list: of("list"),
		states: of("states"),
	}
}

// Add implements [module.UnreadService].
func (s *Service) Add(ctx context.Context, at module.Place, decisions module.Decisions) (err error) {
	ctx, end := s.observer.Begin(ctx, s.add)
	defer func() { end(observe.Outcome{Err: err}) }()
	if err := checkPlace(at, decisions); err != nil {
		return err
	}
	return s.appendToAll(ctx, s.added(at, decisions))
}

// added returns the operations of an event. Users with the same actions share a text.
func (s *Service) added(at module.Place, decisions module.Decisions) []module.UserText {
	op := fold.Op{Kind: fold.Notified, Room: at.Room, Position: at.Position, Thread: at.Thread, Time: s.now().UnixMilli()}
	var all []module.UserText
	if at.Sender != "" {
		read := op
		read.Kind = fold.Read
		all = append(all, module.UserText{User: at.Sender, Text: read.Text()})
	}
	type effect struct {
		highlight, invite bool
		actions           string
	}
	texts := map[effect]string{}
	var buffer []byte
	for _, d := range decisions {
		if !d.Result.Notify() || d.User == at.Sender {
			continue
		}
		buffer = appendActions(buffer[:0], d.Result.Actions(), d.Result.Highlight())
		text, found := texts[effect{d.Result.Highlight(), d.Invite, string(buffer)}]
		if !found {
			op.Highlight, op.Invite, op.Actions = d.Result.Highlight(), d.Invite, string(buffer)
			text = op.Text()
			texts[effect{op.Highlight, op.Invite, op.Actions}] = text
		}
		all = append(all, module.UserText{User: d.User, Text: text})
	}
	return all
}

// maxActionBytes bounds the actions of a notification. Longer actions are reduced to
// notify and highlight.
const maxActionBytes = 1 << 10

func appendActions(dst []byte, actions []pushrule.Action, highlight bool) []byte {
	dst = pushrule.AppendActions(dst, actions)
	if len(dst) > maxActionBytes {
		dst = append(dst[:0], fold.Simplest(highlight)...)
	}
	return dst
}

// Read implements [module.UnreadService].
func (s *Service) Read(ctx context.Context, user mxid.UserID, room, thread string, position int64) (err error) {
	ctx, end := s.observer.Begin(ctx, s.read)
	defer func() { end(observe.Outcome{Err: err}) }()
	if err := firstOf(checkUser(user), checkEvent(room, position), checkThread(thread)); err != nil {
		return err
	}
	op := fold.Op{Kind: fold.Read, Room: room, Thread: thread, Position: position, Time: s.now().UnixMilli()}
	return s.append(ctx, []module.UserText{{User: user, Text: op.Text()}})[0]
}

// Forget implements [module.UnreadService].
func (s *Service) Forget(ctx context.Context, room string, position int64, users []mxid.UserID) (err error) {
	ctx, end := s.observer.Begin(ctx, s.forget)
	defer func() { end(observe.Outcome{Err: err}) }()
	if err := checkEvent(room, position); err != nil {
		return err
	}
	text := fold.Op{Kind: fold.Redacted, Room: room, Position: position, Time: s.now().UnixMilli()}.Text()
	all := make([]module.UserText, len(users))
	for i, user := range users {
		if err := checkUser(user); err != nil {
			return err
		}
		all[i] = module.UserText{User: user, Text: text}
	}
	return s.appendToAll(ctx, all)
}

// atOnce divides a call for many users.
var atOnce = partition.Size{Chunk: 500, AtOnce: 2}

// appendToAll appends the texts of different users. Its error is a [module.LeftError]. It is
// without the users of unreadable lists: a repetition would not help.
func (s *Service) appendToAll(ctx context.Context, texts []module.UserText) error {
	users, of := make([]mxid.UserID, len(texts)), make(map[mxid.UserID]module.UserText, len(texts))
	for i, t := range texts {
		users[i], of[t.User] = t.User, t
	}
	var left partition.Left
	silent := partition.Do(ctx, s.store.Partition, users, atOnce, func(ctx context.Context, chunk []mxid.UserID) (answered bool) {
		some := make([]module.UserText, len(chunk))
		for i, user := range chunk {
			some[i] = of[user]
		}
		for i, err := range s.append(ctx, some) {
			isDone := err == nil || isUnreadable(err)
			if answered = answered || isDone || errors.Is(err, fault.ErrNotConfirmed); !isDone {
				left.Add(err, chunk[i])
			}
		}
		return answered
	})
	left.Add(module.Unavailable(retry.ErrSilent), silent...)
	return left.Err()
}

// append appends each text, and returns its error. It compacts lists that have become long.
func (s *Service) append(ctx context.Context, texts []module.UserText) []error {
	errs := make([]error, len(texts))
	if len(texts) == 0 {
		return errs
	}
	var due []mxid.UserID
	appended, long, unreadable := 0, 0, 0
	for i, length := range s.store.Append(ctx, texts) {
		if errs[i] = length.Err; length.Err != nil {
			if isUnreadable(length.Err) {
				unreadable++
			}
			continue
		}
		appended++
		if length.Value > MaxOps {
			long++
		}
		if isCompactedAt(length.Value) {
			due = append(due, texts[i].User)
		}
	}
	s.observer.Count(observe.UnreadAppended, "", appended)
	s.observer.Count(observe.UnreadLong, "", long)
	s.observer.Count(observe.UnreadUnreadable, "", unreadable)
	s.compactUsers(ctx, due)
	return errs
}

func isUnreadable(err error) bool { return fault.KindOf(err) == fault.Database }

// maxIDBytes is the maximum length of room ids and event ids (Matrix specification,
// appendices, "Opaque identifiers").
const maxIDBytes = 255

var (
	errRoom     = fault.New(fault.InvalidParam, "A room id begins with ! and has at most 255 bytes.")
	errPosition = fault.New(fault.InvalidParam, "A position is above 0.")
	errThread   = fault.New(fault.InvalidParam, "A thread is main, or the event id of its root with at most 255 bytes.")
)

func checkPlace(at module.Place, decisions module.Decisions) error {
	err := firstOf(checkEvent(at.Room, at.Position), checkThread(at.Thread))
	if err == nil && at.Thread == module.AllThreads {
		err = errThread
	}
	if err == nil && at.Sender != "" {
		err = checkUser(at.Sender)
	}
	for _, d := range decisions {
		if err == nil && d.Result.Notify() {
			err = checkUser(d.User)
		}
	}
	return err
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkEvent(room string, position int64) error {
	switch {
	case !isID(room, "!"):
		return errRoom
	case position <= 0:
		return errPosition
	}
	return nil
}

func checkThread(thread string) error {
	if thread != module.AllThreads && thread != module.MainThread && !isID(thread, "$") {
		return errThread
	}
	return nil
}

func isID(id, sigil string) bool {
	return strings.HasPrefix(id, sigil) && len(id) <= maxIDBytes && utf8.ValidString(id) && !strings.Contains(id, "\x00")
}

func checkUser(user mxid.UserID) error {
	if err := user.Validate(); err != nil {
		return fault.Wrap(fault.InvalidParam, "The user id is not valid.", fmt.Errorf("unread: %w", err))
	}
	return nil
}
