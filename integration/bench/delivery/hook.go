package delivery

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// countedKey marks the contexts of calls whose commands are counted.
type countedKey struct{}

// countingHook counts commands that are sent for marked calls.
type countingHook struct{ commands atomic.Int64 }

func (h *countingHook) count(ctx context.Context, commands int) {
	if ctx.Value(countedKey{}) != nil {
		h.commands.Add(int64(commands))
	}
}

func (h *countingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *countingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.count(ctx, 1)
		return next(ctx, cmd)
	}
}

func (h *countingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.count(ctx, len(cmds))
		return next(ctx, cmds)
	}
}
