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
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/telemetry/logging"
)

// The line contains the cause, not only the text for clients.
func TestEachProblemHasOneLine(t *testing.T) {
	t.Parallel()
	cause := module.Unavailable(errors.New("connection refused"))
	differs := &redisclient.ClockError{Addr: "10.0.0.1:6379", Offset: time.Minute}
	advice := redisclient.Advice{Option: "MaxRetries", Fault: "does not try again", Remedy: "set MaxRetries to 3"}
	refused := module.ImportedRules{Refused: make([]pushrule.RefusedRule, 2)}
	const unavailable = "The server cannot reach its storage, try again later.: connection refused"
	for _, test := range []struct {
		problem observe.Problem
		err     error
		level   zapcore.Level
		message string
		fields  map[string]any
	}{
		{observe.FeedDisconnected, fmt.Errorf("watch: %w", cause), zapcore.WarnLevel,
			"change feed disconnected from Redis, reconnecting", map[string]any{"error": "watch: " + unavailable}},
		{observe.ListenerPanicked, &feed.ListenerPanic{Listener: "waker", Value: "a bug"}, zapcore.ErrorLevel,
			"change listener panicked", map[string]any{"error": (&feed.ListenerPanic{Listener: "waker", Value: "a bug"}).Error()}},
		{observe.PushkeysUnread, cause, zapcore.WarnLevel,
			"pushkeys cannot be read, their pushers count as not taken", map[string]any{"error": unavailable}},
		{observe.ImportIncomplete, &service.ImportRefused{User: "@alice:example.org", Result: module.ImportResult{Rules: refused}}, zapcore.WarnLevel,
			"rules or pushers of a user were not imported", map[string]any{"user_id": "@alice:example.org", "rules": 2, "pushers": 0}},
		{observe.ClientSetting, &redisclient.SettingError{Advice: advice, Address: "10.0.0.1:6379"}, zapcore.WarnLevel,
			"a setting of the Redis client will hurt",
			map[string]any{"option": "MaxRetries", "why": advice.String(), "redis": "10.0.0.1:6379"}},
		{observe.NoDurability, errors.New("no replicas"), zapcore.WarnLevel,
			"no change will be acknowledged", map[string]any{"why": "no replicas"}},
		{observe.RedisEvicts, errors.New("allkeys-lru"), zapcore.WarnLevel,
			"Redis may evict keys", map[string]any{"error": "allkeys-lru"}},
		{observe.ClockDiffers, differs, zapcore.WarnLevel,
			"the clocks of this host and of Redis differ", map[string]any{"error": differs.Error()}},
		{observe.ClockUnknown, errors.New("NOPERM"), zapcore.WarnLevel,
			"the clock of Redis cannot be read", map[string]any{"error": "NOPERM"}},
		{observe.MasterSkipped, errors.New("connection refused"), zapcore.WarnLevel,
			"a Redis master does not reply", map[string]any{"error": "connection refused"}},
		{observe.DeliveryDelayed, cause, zapcore.WarnLevel, "notifications are delayed", map[string]any{"error": unavailable}},
		{observe.MailsDelayed, &module.MailError{Status: 535, Err: errors.New("smtp: AUTH: the server answers 535")}, zapcore.WarnLevel,
			"mails are delayed", map[string]any{"error": "smtp: AUTH: the server answers 535"}},
		{observe.KindNotSent, errors.New("kind com.example.sms: 3 users"), zapcore.WarnLevel,
			"notifications wait for a kind of pusher that this host does not send", map[string]any{"error": "kind com.example.sms: 3 users"}},
		{observe.TooManyRejections, nil, zapcore.ErrorLevel,
			"a push gateway rejects too many pushkeys of an app, no more are removed", map[string]any{}},
		{observe.PusherTaken, &service.RemovedPusher{User: "@alice:example.org", Key: pusher.Key{AppID: "app", Pushkey: "hush"}, Device: "PHONE"}, zapcore.InfoLevel,
			"pusher removed, another user has set its pushkey", map[string]any{
				"user_id": "@alice:example.org", "app_id": "app", "device_id": "PHONE", "pusher": delivery.PusherID("@alice:example.org", pusher.Key{AppID: "app", Pushkey: "hush"}),
			}},
		{observe.PusherRemoved, &delivery.RejectedError{User: "@alice:example.org", Pusher: "I0rGUzqbEPAr7oXUSnlEDg", App: "app", Device: "PHONE", Gateway: "https://gw:443"}, zapcore.InfoLevel,
			"pusher removed, its gateway has rejected the pushkey",
			map[string]any{"user_id": "@alice:example.org", "pusher": "I0rGUzqbEPAr7oXUSnlEDg", "app_id": "app", "device_id": "PHONE", "gateway": "https://gw:443"}},
		{observe.DeliveredLate, &delivery.LateError{Pusher: "I0rGUzqbEPAr7oXUSnlEDg", Age: 40 * time.Second, Cause: delivery.LateThrottled, Attempts: 1, Last: "429"},
			zapcore.InfoLevel, "notification delivered late",
			map[string]any{"pusher": "I0rGUzqbEPAr7oXUSnlEDg", "age": 40 * time.Second, "cause": "throttled", "failures": 1, "last": "429"}},
	} {
		core, logs := observer.New(zapcore.DebugLevel)
		logging.New(zap.New(core), observe.None).Report(test.problem, test.err)
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
