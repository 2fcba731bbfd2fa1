package rulestore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/stored"
)

// A connection on which nothing comes for a while is asked whether it is still
// there.
const (
	quiet    = 3 * time.Second
	pingTime = 2 * time.Second
)

// Watch calls changed for each published change; see [module.RuleStore]. It has a
// connection of its own. Redis keeps no published message for later, so a lost
// connection ends the watch.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	subscription := s.client.Subscribe(ctx, s.channel)
	defer subscription.Close()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		subscription.Close() // which ends a receive
	})
	defer func() {
		if !cancel() {
			<-ended
		}
	}()
	asked := false
	for {
		wait := quiet
		if asked {
			wait = pingTime
		}
		received, err := subscription.ReceiveTimeout(ctx, wait)
		switch message := received.(type) {
		case *redis.Subscription:
			watching()
		case *redis.Message:
			if user, version, found := stored.ReadMessage(message.Payload); found {
				s.events.Heard(user, version)
				changed(module.Change{User: user, Version: version, Made: s.madeAt(version)})
			}
		}
		if isQuiet := err != nil && !asked && isTimeout(err); isQuiet {
			err = subscription.Ping(ctx)
			asked = true
		} else {
			asked = false
		}
		if err != nil {
			return fmt.Errorf("rulestore: watch: %w", err)
		}
	}
}

// madeAt returns when a change was made, by the clock of this host: the version
// is that time by the clock of Redis.
func (s *Store) madeAt(version int64) time.Time {
	return time.Now().Add(-s.now().Sub(time.UnixMicro(version)))
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
