package logging_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe/logging"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
)

// The cause is in the line, not only the text that clients may see.
func TestEachProblemHasOneLine(t *testing.T) {
	t.Parallel()
	cause := module.Unavailable(errors.New("connection refused"))
	differs := &redisclient.ClockError{Addr: "10.0.0.1:6379", Offset: time.Minute}
	advice := redisclient.Advice{Option: "MaxRetries", Fault: "does not try again", Remedy: "set MaxRetries to 3"}
	refused := module.ImportedRules{Refused: make([]pushrule.RefusedRule, 2)}
	const unavailable = "The server cannot reach its storage, try again later.: connection refused"
	for _, test := range []struct {
		write   func(logging.Lines)
		level   zapcore.Level
		message string
		fields  map[string]any
	}{
		{func(l logging.Lines) { l.Feed(fmt.Errorf("watch: %w", cause)) }, zapcore.WarnLevel,
			"change feed disconnected from Redis, reconnecting", map[string]any{"error": "watch: " + unavailable}},
		{func(l logging.Lines) { l.Feed(&module.ListenerPanic{Listener: "waker", Value: "a bug"}) }, zapcore.ErrorLevel,
			"change listener panicked", map[string]any{"error": (&module.ListenerPanic{Listener: "waker", Value: "a bug"}).Error()}},
		{func(l logging.Lines) { l.SettleFailed(cause) }, zapcore.WarnLevel,
			"pushkeys are still to be settled", map[string]any{"error": unavailable}},
		{func(l logging.Lines) { l.ImportRefused("@alice:example.org", module.ImportResult{Rules: refused}) }, zapcore.WarnLevel,
			"rules or pushers of a user were not imported", map[string]any{"user_id": "@alice:example.org", "rules": 2, "pushers": 0}},
		{func(l logging.Lines) { l.Setting(advice, "10.0.0.1:6379") }, zapcore.WarnLevel,
			"a setting of the Redis client will hurt",
			map[string]any{"option": "MaxRetries", "why": advice.String(), "redis": "10.0.0.1:6379"}},
		{func(l logging.Lines) { l.Shortage("no replicas") }, zapcore.WarnLevel,
			"no change will be acknowledged", map[string]any{"why": "no replicas"}},
		{func(l logging.Lines) { l.Evicting(errors.New("allkeys-lru")) }, zapcore.WarnLevel,
			"Redis may evict keys", map[string]any{"error": "allkeys-lru"}},
		{func(l logging.Lines) { l.Clock(differs) }, zapcore.WarnLevel,
			"the clocks of this host and of Redis differ", map[string]any{"error": differs.Error()}},
		{func(l logging.Lines) { l.Clock(errors.New("NOPERM")) }, zapcore.WarnLevel,
			"the clock of Redis cannot be read", map[string]any{"error": "NOPERM"}},
	} {
		core, logs := observer.New(zapcore.DebugLevel)
		test.write(logging.New(zap.New(core)))
		lines := logs.All()
		if len(lines) != 1 || lines[0].Message != test.message || lines[0].Level != test.level {
			t.Errorf("%s: got %v", test.message, lines)
			continue
		}
		if got := lines[0].ContextMap(); fmt.Sprint(got) != fmt.Sprint(test.fields) {
			t.Errorf("%s: got fields %v, want %v", test.message, got, test.fields)
		}
	}
}
