package redisclient

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	pingAfter   = 3 * time.Second
	pongTimeout = 2 * time.Second
)

// Listen calls received with each message on a channel, until ctx ends or its own
// connection is lost. It calls subscribed once, when no later message can be missed.
// Redis keeps no messages for later subscribers.
func Listen(ctx context.Context, client redis.UniversalClient, channel string, subscribed func(), received func(message string)) error {
	subscription := client.Subscribe(ctx, channel)
	defer subscription.Close()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		subscription.Close() // ends a receive
	})
	defer func() {
		if !cancel() {
			<-ended
		}
	}()
	pinged := false
	for {
		timeout := pingAfter
		if pinged {
			timeout = pongTimeout
		}
		event, err := subscription.ReceiveTimeout(ctx, timeout)
		switch event := event.(type) {
		case *redis.Subscription:
			subscribed()
		case *redis.Message:
			received(event.Payload)
		}
		if isSilent := err != nil && !pinged && isTimeout(err); isSilent {
			err = subscription.Ping(ctx)
			pinged = true
		} else {
			pinged = false
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
