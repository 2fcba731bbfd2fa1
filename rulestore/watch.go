package rulestore

import (
	"context"
	"fmt"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Watch calls changed for each published change; see [module.RuleStore]. It ends when
// its own connection is lost, because Redis does not keep messages.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	err := redisclient.Listen(ctx, s.client, s.channel, watching, func(message string) {
		user, version, found := stored.ReadMessage(message)
		if !found {
			return
		}
		s.events.ForgetBefore(user, version)
		changed(module.Change{User: user, Version: version, Made: s.madeAt(version)})
	})
	return fmt.Errorf("rulestore: watch: %w", err)
}

func (s *Store) madeAt(version int64) time.Time {
	return time.Now().Add(-s.now().Sub(time.UnixMicro(version)))
}
