// Package assembly builds the parts of the module, without fx; its API may change at any time, except
// for [Mail].
// Each method of [Builder] is the constructor of a part. The host's container calls the
// constructors of the parts that the host has not replaced; without a container, [Builder.Build]
// does.
package assembly

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/handlers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/delivery"
	mailchannel "github.com/pushfx/pushfx/module/delivery/channel/mail"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/observe"
	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/telemetry/logging"
	"github.com/pushfx/pushfx/module/telemetry/metrics"
	"github.com/pushfx/pushfx/module/telemetry/tracing"
)

// Host is what the host provides. Config and Log are required.
type Host struct {
	Config     Config
	Log        *zap.Logger
	Client     redis.UniversalClient
	Tracers    trace.TracerProvider
	Registerer prometheus.Registerer

	ClusterClient *redis.ClusterClient // replaces Client
	NodeClient    *redis.Client        // replaces Client
	Registry      *prometheus.Registry // replaces Registerer
}

func (h *Host) useConcreteTypes() {
	if isNil(h.Client) {
		h.Client = nil // otherwise the first call would panic
	}
	if h.Client == nil && h.ClusterClient != nil {
		h.Client = h.ClusterClient
	}
	if h.Client == nil && h.NodeClient != nil {
		h.Client = h.NodeClient
	}
	if h.Registerer == nil && h.Registry != nil {
		h.Registerer = h.Registry
	}
}

// Builder has a constructor for each part of the module.
type Builder struct {
	host     Host
	observer observe.Observer
	metrics  *metrics.Set
	defaults pushrule.Defaults
	servers  *redisclient.Monitor
	server   *handlers.Server
	onRedis  bool // some part is on Redis; see [Builder.redis]

	pipelines        *redisclient.Pipelines // shared by all stores on the client
	hasNotifications bool                   // the groups have GET /notifications
	delivery         *delivery.Delivery     // nil without one
	channels         []module.Channel       // of the host, set by Service
	ownMailer        *smtp.Mailer           // nil without one
	ownComposer      *mail.Composer         // nil without one
	fromHost         []string               // see [Builder.note]
	nils             []error                // see [Builder.note]
}

// New returns a builder, or an error if the config is invalid.
func New(host Host) (*Builder, error) {
	cfg := host.Config
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("pushfx: invalid config: %w", err)
	}
	host.useConcreteTypes()
	host.Log = host.Log.WithOptions(zap.AddStacktrace(zap.DPanicLevel)) // errors include their cause
	b := &Builder{host: host, metrics: metrics.NewSet(host.Registerer, cfg.DeliveryMetrics)}
	b.observer = b.metrics.Observer()
	if host.Tracers != nil {
		b.observer = tracing.New(host.Tracers, b.observer)
	}
	b.observer = logging.New(host.Log, b.observer)
	b.servers = redisclient.NewMonitor(host.Client, cfg.Servers, cfg.Redis.Durability, b.observer)
	b.metrics.Add(metrics.NewEvicting(b.servers.EvictingMasters), metrics.NewClockOffset(b.servers.Clock().Offset))
	var errs [2]error
	b.defaults, errs[0] = pushrule.NewDefaults(cfg.Features, cfg.DefaultRules...)
	b.server, errs[1] = handlers.NewServer(cfg.Handlers, b.observer, host.Log)
	return b, errors.Join(errs[:]...)
}

func isNil(part any) bool {
	value := reflect.ValueOf(part)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// note records a part that comes from the host, for the log of the start, and a nil pointer as an
// error for Finish. Usual has the type of the module's own part; nil: the module has none.
func (b *Builder) note(name string, part, usual any) {
	if isNil(part) {
		b.nils = append(b.nils, fmt.Errorf("pushfx: the %s is a nil %T: %s", name, part, noNil))
	}
	if part != nil && reflect.TypeOf(part) != reflect.TypeOf(usual) {
		b.fromHost = append(b.fromHost, fmt.Sprintf("%s %T", name, part))
	}
}

const noNil = "leave it out of Options, or let its constructor return one"

// redis returns the arguments of constructors of parts on Redis. It records that such a
// part exists, because the host may replace all of them. [Builder.Finish] reports a
// missing client: an error here would list all constructors that the container was
// calling.
func (b *Builder) redis() (redis.UniversalClient, rediscommit.Config, rediscommit.Options) {
	b.onRedis = true
	client := b.host.Client
	if client == nil {
		client = redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	if b.pipelines == nil {
		b.pipelines = redisclient.NewPipelines(client, b.observer)
		b.metrics.Add(metrics.NewSilent(b.pipelines.Silent))
	}
	return client, b.host.Config.Redis, rediscommit.Options{Now: b.servers.Clock().Now, Pipelines: b.pipelines, Observer: b.observer}
}

var errNoClient = errors.New("pushfx: there is no Redis client, or it is nil: provide a redis.UniversalClient, *redis.Client or *redis.ClusterClient")

func (b *Builder) keys() stored.Keys { return stored.Keys{Prefix: b.host.Config.Redis.KeyPrefix} }

// Finish returns the error of a part that is missing, or that no check of its own has found.
// Call it after all constructors.
func (b *Builder) Finish() error {
	if b.onRedis && b.host.Client == nil {
		return errNoClient
	}
	if len(b.channels) > 0 && b.delivery == nil {
		return errChannelWithoutDelivery
	}
	if m := b.host.Config.Mail; b.delivery == nil && (m.hasServer() || m.Sending != mailchannel.DefaultConfig()) {
		return errMailWithoutDelivery
	}
	if b.host.Config.WebPush.IsOn() && b.delivery == nil {
		return errWebPushWithoutDelivery
	}
	if b.nils != nil {
		return errors.Join(b.nils...)
	}
	err := b.metrics.Register()
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		return fmt.Errorf("%w: give each Push a prometheus.Registerer of its own", err)
	}
	return err
}

// HostParts names the interfaces of the parts that are the host's, with their types.
func (b *Builder) hostParts() []string { return slices.Sorted(slices.Values(b.fromHost)) }
