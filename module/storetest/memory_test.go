package storetest

import (
	"testing"

	"github.com/pushfx/pushfx/module"
)

func TestMemoryFulfilsTheContracts(t *testing.T) {
	t.Parallel()
	memory := NewMemory()
	t.Run("rules", func(t *testing.T) { Rules(t, func(*testing.T) module.RuleStore { return memory.Rules() }, nil) })
	t.Run("pushers", func(t *testing.T) { Pushers(t, func(*testing.T) module.PusherStore { return memory.Pushers() }) })
	t.Run("pushkeys", func(t *testing.T) {
		Pushkeys(t, func(*testing.T) module.PushkeyIndex { return memory.Pushkeys() }, func(*testing.T) module.PusherStore { return memory.Pushers() })
	})
	t.Run("unread", func(t *testing.T) { Unread(t, func(*testing.T) module.UnreadStore { return memory.Unread() }) })
}
