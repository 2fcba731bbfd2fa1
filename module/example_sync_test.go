package module_test

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// The part of /sync that is about push rules.
func ExampleSyncService() {
	var changes module.SyncService // Push.Sync of package pushfx, or out of the fx container
	s := &syncEndpoint{changes, zap.NewExample()}
	event, next := s.pushRules(context.Background(), "@alice:example.org", 0, 30*time.Second)
	fmt.Println(string(event), next)
}

type syncEndpoint struct {
	changes module.SyncService
	log     *zap.Logger
}

// pushRules returns the event for a sync with the module's token since, 0 at the first
// sync, and the next token. Ctx is the context of the request.
func (s *syncEndpoint) pushRules(
	ctx context.Context, user mxid.UserID, since int64, timeout time.Duration,
) (event []byte, next int64) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		update, err := s.changes.Since(ctx, user, since)
		if err != nil { // the token stays the same, so a later sync sends the rules
			s.log.Warn("push: a sync without push rules", zap.String("user_id", string(user)), zap.String("error", fault.Details(err)))
		}
		if update.New {
			event := update.Content.AppendJSON([]byte(`{"type":"m.push_rules","content":`))
			return append(event, '}'), update.Token
		}
		select {
		case <-update.Changed:
		case <-timer.C:
			return nil, update.Token
		case <-ctx.Done():
			return nil, update.Token
		}
	}
}
