package module_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// The part of /sync that is about push rules.
func ExampleSyncService() {
	var changes module.SyncService // Push.Sync of package pushfx, or out of the fx container
	s := &syncEndpoint{changes, newSyncWaker()}
	event, next, err := s.pushRulesSince(context.Background(), "@alice:example.org", 0)
	fmt.Println(string(event), next, err)
}

// syncWaker hears of every change, whichever host instance made it.
type syncWaker struct {
	mu      sync.Mutex
	waiting map[mxid.UserID]chan struct{} // closed when the user's rules change
}

func newSyncWaker() *syncWaker { return &syncWaker{waiting: map[mxid.UserID]chan struct{}{}} }

func (w *syncWaker) PushRulesChanged(_ context.Context, user mxid.UserID, _ int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if news, found := w.waiting[user]; found {
		close(news)
		delete(w.waiting, user)
	}
}

// news is closed at the user's next change.
func (w *syncWaker) news(user mxid.UserID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[user] == nil {
		w.waiting[user] = make(chan struct{})
	}
	return w.waiting[user]
}

type syncEndpoint struct {
	changes module.SyncService
	waker   *syncWaker
}

// pushRulesSince returns the event for a sync with a token that has since in it,
// 0 at the first sync; ctx ends with the request's timeout.
func (s *syncEndpoint) pushRulesSince(
	ctx context.Context, user mxid.UserID, since int64,
) (event []byte, next int64, err error) {
	for {
		news := s.waker.news(user) // before the rules are read, so that no change is missed
		content, changed, err := s.changes.ContentSince(ctx, user, since)
		if err != nil {
			return nil, since, err
		}
		if changed {
			event := content.AppendJSON([]byte(`{"type":"m.push_rules","content":`))
			return append(event, '}'), content.Version, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, since, nil
		}
	}
}
