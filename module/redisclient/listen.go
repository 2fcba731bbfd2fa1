package redisclient

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// A connection on which nothing comes for a while is asked whether it is still
// there.
const (
	quiet    = 3 * time.Second
	pingTime = 2 * time.Second
)

// Listen calls heard for each message that is published on a channel, and
// subscribed, once, when it hears of every later one, until ctx ends or the
// connection is lost, which is one of its own. What is published is not kept for
// anybody.
func Listen(ctx context.Context, client redis.UniversalClient, channel string, subscribed func(), heard func(message string)) error {
	subscription := client.Subscribe(ctx, channel)
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
			subscribed()
		case *redis.Message:
			heard(message.Payload)
		}
		if isQuiet := err != nil && !asked && isTimeout(err); isQuiet {
			err = subscription.Ping(ctx)
			asked = true
		} else {
			asked = false
		}
		if err != nil {
			return err
		}
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
