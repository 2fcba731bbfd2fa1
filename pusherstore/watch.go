package pusherstore

import (
	"context"
	"fmt"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
)

// Watch calls changed for each published change; see [module.PusherWatcher]. It ends
// when its own connection is lost, because Redis does not keep messages.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(mxid.UserID)) error {
	err := redisclient.Listen(ctx, s.client, s.channel, watching, func(message string) {
		if user, _, found := stored.ReadMessage(message); found {
			changed(user)
		}
	})
	return fmt.Errorf("pusherstore: watch: %w", err)
}
