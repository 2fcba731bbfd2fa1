package queuetest

import (
	"testing"

	"github.com/pushfx/pushfx/module"
)

func TestTheQueueInMemory(t *testing.T) {
	q := NewMemory()
	Queue(t, func(*testing.T) module.DeliveryQueue { return q })
}
