package rediscommit

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/redisclient"
)

// Writer sends a store's commands by its [redisclient.Pipelines], with the store's limits
// and in its name. It is safe for concurrent use.
type Writer struct {
	pipelines *redisclient.Pipelines
	name      string
	observed  string
	cfg       Config
	observer  observe.Observer
}

// NewWriter returns a writer on client, which the caller closes. Name is for errors,
// observed for observers.
func NewWriter(client redis.UniversalClient, name, observed string, cfg Config, o Options) (*Writer, error) {
	if err := errors.Join(cfg.Validate(), cfg.Durability.CheckClient(client)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Writer{o.PipelinesOn(client), name, observed, cfg, observe.Or(o.Observer)}, nil
}

// Read sends reads and returns their errors, each [module.Unavailable].
func (w *Writer) Read(ctx context.Context, reads ...*redisclient.Command) []error {
	return w.do(ctx, redisclient.Kind{IsRead: true}, reads)
}

// Do sends writes and returns their errors, each [module.Unavailable], after which the
// write may have been done; see [redisclient.Kind].
func (w *Writer) Do(ctx context.Context, writes ...*redisclient.Command) []error {
	return w.do(ctx, redisclient.Kind{}, writes)
}

// DoDurably is Do with a wait for the durability.
func (w *Writer) DoDurably(ctx context.Context, writes ...*redisclient.Command) []error {
	return w.do(ctx, redisclient.Kind{Durability: w.cfg.Durability}, writes)
}

func (w *Writer) do(ctx context.Context, k redisclient.Kind, commands []*redisclient.Command) []error {
	ctx, cancel := w.cfg.Bound(ctx)
	defer cancel()
	errs := w.send(ctx, k, commands...)
	for i, err := range errs {
		if err != nil {
			errs[i] = module.Unavailable(fmt.Errorf("%s: %w", w.name, err))
		}
	}
	return errs
}

func (w *Writer) send(ctx context.Context, k redisclient.Kind, commands ...*redisclient.Command) []error {
	errs := w.pipelines.Do(ctx, k, commands...)
	for i, err := range errs {
		if waited := commands[i].Waited; waited > 0 {
			w.observer.Took(observe.DurabilityWait, w.observed, waited, err == nil)
		}
	}
	return errs
}
