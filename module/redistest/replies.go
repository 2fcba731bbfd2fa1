package redistest

import (
	"cmp"
	"context"
	"io"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// LoseScriptReplies makes a client lose replies of scripts that succeed: the
// server runs them, and the caller gets [io.EOF], as when the connection is cut
// after the command arrived. Lost are those that lose says, of the n-th such
// reply from now on, counted from 1. Any Redis will do, an embedded one too. It
// is safe for concurrent use, and so must lose be.
func LoseScriptReplies(client redis.UniversalClient, lose func(n int64) bool) {
	client.AddHook(&replyLoss{lose: lose})
}

type replyLoss struct {
	lose    func(n int64) bool
	replies atomic.Int64
}

func (l *replyLoss) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *replyLoss) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			err = cmp.Or(err, l.pass(cmd, cmd.Err()))
		}
		return err
	}
}

func (l *replyLoss) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return l.pass(cmd, next(ctx, cmd))
	}
}

// pass returns the error of a command, whose reply may be lost.
func (l *replyLoss) pass(cmd redis.Cmder, err error) error {
	if err != nil || !strings.HasPrefix(cmd.Name(), "eval") || !l.lose(l.replies.Add(1)) {
		return err
	}
	cmd.SetErr(io.EOF)
	return io.EOF
}
