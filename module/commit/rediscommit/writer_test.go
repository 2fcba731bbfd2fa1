package rediscommit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/redistest"
)

func TestWaitBeforeRetryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for try := range 200 {
			if began := time.Now(); !waitBeforeRetry(t.Context(), try) || time.Since(began) > 100*time.Millisecond {
				t.Errorf("try %d: waited %v", try, time.Since(began))
			}
		}
	})
}

// slowWrites delays pipelines of INCR until it opens. Unless refuses is nil, pipelines
// of several commands then fail with it.
type slowWrites struct {
	trips
	held    chan struct{} // receives one element for each delayed pipeline
	opens   chan struct{}
	refuses error
}

func (h *slowWrites) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if commands[0].Name() != "incr" {
			return next(ctx, commands)
		}
		h.mu.Lock()
		h.sizes = append(h.sizes, len(commands))
		h.mu.Unlock()
		h.held <- struct{}{}
		<-h.opens
		if h.refuses != nil && len(commands) > 1 {
			for _, command := range commands {
				command.SetErr(h.refuses)
			}
			return h.refuses
		}
		return next(ctx, commands)
	}
}

// slowWriter is a writer with all its batches delayed, so that further writes wait.
type slowWriter struct {
	*Writer
	hook    *slowWrites
	client  *redis.Client
	running sync.WaitGroup
}

func newSlowWriter(t *testing.T, refuses error) *slowWriter {
	t.Helper()
	client := redistest.Single(t).Client(t)
	writer, err := NewWriter(client, "test", "test", DefaultConfig(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &slowWriter{
		Writer: writer, client: client,
		hook: &slowWrites{held: make(chan struct{}, 1000), opens: make(chan struct{}), refuses: refuses},
	}
	client.AddHook(w.hook)
	for range maxBatches {
		w.begin(t.Context(), "first", func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
		<-w.hook.held
	}
	return w
}

func (w *slowWriter) begin(ctx context.Context, key string, report func(error)) {
	w.running.Go(func() {
		report(w.DoDurably(ctx, Write{Key: key, Queue: func(ctx context.Context, to redis.Pipeliner) func() error {
			return to.Incr(ctx, key).Err
		}})[0])
	})
}

func TestWaitingWritesAreSentTogether(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refuses error
		want    []int
	}{
		"in one pipeline":                     {nil, []int{1, 1, 10}},
		"alone again after a lost connection": {errors.New("connection lost"), []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSlowWriter(t, test.refuses)
			for n := range 10 {
				w.begin(t.Context(), strconv.Itoa(n), func(err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
			w.batches.waitFor(t, 10)
			close(w.hook.opens)
			w.running.Wait()
			if slices.Sort(w.hook.sizes); !slices.Equal(w.hook.sizes, test.want) {
				t.Errorf("writes in a pipeline: %v, want %v", w.hook.sizes, test.want)
			}
			for n := range 10 {
				if got := w.client.Get(t.Context(), strconv.Itoa(n)).Val(); got != "1" {
					t.Errorf("write %d was done %q times", n, got)
				}
			}
		})
	}
}

func TestWaitingWriteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newSlowWriter(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, other := make(chan error, 1), make(chan error, 1)
	w.begin(ctx, "cancelled", func(err error) { cancelled <- err })
	w.batches.waitFor(t, 1)
	w.begin(t.Context(), "other", func(err error) { other <- err })
	w.batches.waitFor(t, 2)
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the cancelled write got %v", err)
	}
	close(w.hook.opens)
	w.running.Wait()
	if err := <-other; err != nil {
		t.Error(err)
	}
	if got := w.client.Exists(t.Context(), "cancelled").Val(); got != 0 {
		t.Error("the cancelled write was sent")
	}
}
