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

	"github.com/pushfx/pushfx/module"
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
			if change, found := parseMessage(message.Payload); found {
				changed(change)
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

// message is what is published of a change, "VERSION USER".
func message(user mxid.UserID, version int64) string {
	return strconv.FormatInt(version, 10) + " " + string(user)
}

// parseMessage reads a message. Anything else is not found.
func parseMessage(message string) (c module.Change, found bool) {
	number, name, _ := strings.Cut(message, " ")
	version, err := strconv.ParseInt(number, 10, 64)
	c = module.Change{User: mxid.UserID(name), Version: version, Made: time.UnixMicro(version)}
	return c, err == nil && version > 0 && version < isForeign && c.User.Validate() == nil
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
