package pusherstore

import (
	"context"
	"fmt"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Watch calls changed for each published change; see [module.PusherWatcher]. It ends
// when its own connection is lost, because Redis does not keep messages.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(module.PusherChange)) error {
	err := redisclient.Listen(ctx, s.client, s.channel, watching, func(message string) {
		if user, isRepeated, found := stored.ReadPusherMessage(message); found {
			changed(module.PusherChange{User: user, Repeated: isRepeated})
		}
	})
	return fmt.Errorf("pusherstore: watch: %w", err)
}
