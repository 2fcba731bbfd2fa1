package module_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// A host whose sync token is a position in a stream of its own.
func ExampleChangeListener() {
	var service module.HostService // Push.Host of package pushfx, or out of the fx container
	var changes module.SyncService // Push.Sync
	s := &stream{push: service, changes: changes, recorded: map[mxid.UserID]int64{}}
	content, next, err := s.accountData(context.Background(), "@alice:example.org", 0)
	fmt.Println(string(content), next, err)
}

// stream is what is new for whom, in order. It stands for a table of the host's.
type stream struct {
	push    module.HostService
	changes module.SyncService

	mu       sync.Mutex
	users    []mxid.UserID         // whose m.push_rules has changed, by position
	recorded map[mxid.UserID]int64 // the version with which each was put in last
}

// put puts the type of a user's push rules into the stream, once for a version.
func (s *stream) put(user mxid.UserID, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recorded[user] != version {
		s.recorded[user] = version
		s.users = append(s.users, user)
	}
}

func (s *stream) PushRulesChanged(_ context.Context, user mxid.UserID, version int64) {
	s.put(user, version)
}

// accountData returns the content of m.push_rules for a sync with a token of a
// position, 0 for the first sync, if it is new; and the position for the next
// token.
func (s *stream) accountData(
	ctx context.Context, user mxid.UserID, since int,
) (content json.RawMessage, next int, err error) {
	version, err := s.changes.Version(ctx, user) // from memory, unless nobody has asked for a while
	if err != nil {
		return nil, since, err
	}
	s.put(user, version) // if the listener was not called: at the start, and while Redis was away
	next, changed := s.position(user, since)
	if since > 0 && !changed {
		return nil, next, nil
	}
	content, err = s.push.AccountData(ctx, user)
	if err != nil {
		return nil, since, err // the sync fails: a token behind the change would never bring it
	}
	return content, next, nil
}

// position returns where the stream ends, and whether something is new for a user
// since a position.
func (s *stream) position(user mxid.UserID, since int) (end int, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.users[since:] {
		changed = changed || one == user
	}
	return len(s.users), changed
}
