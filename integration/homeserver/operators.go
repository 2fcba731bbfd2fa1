package main

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
)

// operators serves metrics and readiness on its own listener, because clients must not reach
// them.
type operators struct {
	metrics *prometheus.Registry
	health  module.Health
	drain   *drain
	log     *zap.Logger
}

func newOperators(metrics *prometheus.Registry, health module.Health, drain *drain, log *zap.Logger) *operators {
	return &operators{metrics, health, drain, log}
}

func (o *operators) router() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = newErrorHandler(o.log)
	e.GET("/healthz", alive)
	e.GET("/readyz", o.ready)
	e.GET("/metrics", echo.WrapHandler(promhttp.HandlerFor(o.metrics, promhttp.HandlerOpts{})))
	return e
}

// newMetrics returns the registry for the module's metrics. It already has metrics of the
// process and of the Redis connections.
func newMetrics(client redis.UniversalClient) *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "redis_pool_connections", Help: "Connections to Redis, idle ones included."},
			func() float64 { return float64(client.PoolStats().TotalConns) }),
	)
	return metrics
}

// ready serves GET /readyz. It answers 200 if the host can serve users and is not stopping.
func (o *operators) ready(c echo.Context) error {
	if o.drain.begun.Load() {
		return c.String(http.StatusServiceUnavailable, "the host is stopping\n")
	}
	if err := o.health.Healthy(c.Request().Context()); err != nil {
		o.log.Warn("not ready", zap.String("error", fault.Details(err)))
		return c.String(http.StatusServiceUnavailable, "Redis cannot be used\n")
	}
	return c.String(http.StatusOK, "ok\n")
}
