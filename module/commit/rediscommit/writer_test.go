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

// However often a write was redirected, it is sent again soon.
func TestThePauseBeforeARedirectedWriteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for try := range 200 {
			if began := time.Now(); !pauseBefore(t.Context(), try) || time.Since(began) > 100*time.Millisecond {
				t.Errorf("try %d: a pause of %v", try, time.Since(began))
			}
		}
	})
}

// slowWrites is a hook that holds pipelines of INCR until it opens. It has those of
// more than one fail, if that is wanted.
type slowWrites struct {
	trips
	held    chan struct{} // tells of each that comes to it
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

// slowWriter is a writer whose batches are all on their way, and held: so what is
// written next has to wait.
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
	for range batchesAtATime {
		w.begin(t.Context(), "first", func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
		<-w.hook.held
	}
	return w
}

// begin increments a key, and gives what came of it to report.
func (w *slowWriter) begin(ctx context.Context, key string, report func(error)) {
	w.running.Go(func() {
		report(w.DoDurably(ctx, Write{Key: key, Queue: func(ctx context.Context, to redis.Pipeliner) func() error {
			return to.Incr(ctx, key).Err
		}})[0])
	})
}

func TestWritesOfCallsThatComeMeanwhileAreSentTogether(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		refuses error
		want    []int
	}{
		"in one pipeline":                {nil, []int{1, 1, 10}},
		"and alone if that is not known": {errors.New("connection lost"), []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10}},
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
			w.together.waitFor(t, 10)
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

func TestACallThatWaitsWithOthersLeavesWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	w := newSlowWriter(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	left, stayed := make(chan error, 1), make(chan error, 1)
	w.begin(ctx, "leaves", func(err error) { left <- err })
	w.together.waitFor(t, 1)
	w.begin(t.Context(), "stays", func(err error) { stayed <- err })
	w.together.waitFor(t, 2)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the one that left got %v", err)
	}
	close(w.hook.opens)
	w.running.Wait()
	if err := <-stayed; err != nil {
		t.Error(err)
	}
	if got := w.client.Exists(t.Context(), "leaves").Val(); got != 0 {
		t.Error("what waited was sent")
	}
}
