package redistest

import (
	"context"
	"io"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// LoseScriptReplies makes a client lose the replies of its next n scripts that
// succeed: the server runs them, and the caller gets [io.EOF], as when the
// connection is cut after the command arrived. Any Redis will do, an embedded
// one too. It is safe for concurrent use.
func LoseScriptReplies(client redis.UniversalClient, n int) {
	hook := &replyLoss{}
	hook.left.Store(int64(n))
	client.AddHook(hook)
}

type replyLoss struct{ left atomic.Int64 }

func (l *replyLoss) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *replyLoss) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *replyLoss) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil || !strings.HasPrefix(cmd.Name(), "eval") || l.left.Add(-1) < 0 {
			return err
		}
		cmd.SetErr(io.EOF)
		return io.EOF
	}
}
