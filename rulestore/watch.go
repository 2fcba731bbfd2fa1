package rulestore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/mxid"
)

// A connection on which nothing comes for a while is asked whether it is still
// there.
const (
	quiet    = 3 * time.Second
	pingTime = 2 * time.Second
)

// Watch tells of the changes that are published; see [module.RuleStore]. The
// connection is one of its own. What is published is not kept for anybody, so
// a connection that is lost ends the watch.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(mxid.UserID, int64)) error {
	subscription := s.client.Subscribe(ctx, s.channel)
	defer subscription.Close()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		subscription.Close()
	})
	defer func() {
		if !cancel() {
			<-ended
		}
	}()
	late := newLate(changed)
	defer late.start(ctx)()
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
			user, version, found := parse(message.Payload)
			switch {
			case !found:
			case s.own.take(user, version):
				late.put(user, version)
			default:
				changed(user, version)
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

// parse reads a message. What is none of the module's is not found.
func parse(message string) (user mxid.UserID, version int64, found bool) {
	number, name, _ := strings.Cut(message, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	user = mxid.UserID(name)
	return user, version, err == nil && version > 0 && user.Validate() == nil
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
