package pushfx

import (
	"context"
	"errors"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
)

// Delivery is for hosts that send notifications: it stands beside [Module], and
// gives the host a [module.Notifier]. Without it nothing of it is started.
//
// It takes a [module.Unread] and a [module.Attention], where there are. The host
// may replace or wrap the [module.Notifier], the [module.Gateway] and the
// [module.DeliveryQueue]. Without fx, see [Options.Delivery].
var Delivery = fx.Module("push_delivery", fx.Provide(
	(*builder).deliveryQueue,
	(*builder).gateway,
	fx.Annotate((*builder).delivery, fx.ParamTags("", "", "", "", "", `optional:"true"`, `optional:"true"`)),
))

// DeliveryOptions are what a host without fx may give to delivery. The zero value
// takes all defaults.
type DeliveryOptions struct {
	Unread    module.Unread        // what the host knows of what users have read
	Attention module.Attention     // whether users look elsewhere
	Gateway   module.Gateway       // in the place of requests by HTTP
	Queue     module.DeliveryQueue // in the place of Redis
}

// errNoDelivery is for a host that asks for a Notifier and has no delivery.
var errNoDelivery = errors.New("pushfx: there is no Notifier without delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")

// noNotifier is the Notifier of a host without delivery.
type noNotifier struct{}

func (noNotifier) Decide(context.Context, module.Event, []match.Member) (module.Decisions, error) {
	return nil, errNoDelivery
}

func (noNotifier) Notify(context.Context, module.Event, string, module.Decisions) error {
	return errNoDelivery
}

func (noNotifier) UpdateBadges(context.Context, ...mxid.UserID) error { return errNoDelivery }

// notifierOf returns delivery, or, if there is none, a Notifier whose calls return the
// error, which a host with fx gets at start if it asks for a Notifier.
func notifierOf(d *delivery.Delivery) (module.Notifier, error) {
	if d == nil {
		return noNotifier{}, errNoDelivery
	}
	return d, nil
}

func (b *builder) deliveryQueue() (module.DeliveryQueue, error) {
	client, shared, options := b.redis()
	return redisqueue.New(client, shared, b.host.Config.DeliveryQueue, options)
}

// gateway returns what connects to the addresses that pushers may name.
func (b *builder) gateway() module.Gateway {
	guard := dialguard.New(b.host.Config.PusherPolicy.AllowedPrefixes...)
	client, transport := guard.Client(b.host.Config.Delivery.MaxPerGateway), guard.Transport(b.host.Config.Delivery.MaxPerGateway)
	transport.ResponseHeaderTimeout = 0
	client.Transport, client.Timeout = transport, 0 // the context of each request has Delivery.RequestTimeout
	return delivery.NewHTTPGateway(client)
}

func (b *builder) delivery(
	queue module.DeliveryQueue, gateway module.Gateway, host module.HostService, feed *module.Feed,
	unread module.Unread, attention module.Attention,
) (*delivery.Delivery, error) {
	d, err := delivery.New(delivery.Seams{
		Queue: queue, Gateway: gateway, Host: host, Feed: feed, Unread: unread, Attention: attention,
		Now: b.servers.Clock().Now, Observer: b.observer,
	}, b.host.Config.Delivery)
	if err != nil {
		return nil, err
	}
	b.metrics.AddDelivery(d.Stats, b.host.Config.Delivery.Shards)
	return d, nil
}

// newDelivery returns delivery as [New] makes it.
func (b *builder) newDelivery(o DeliveryOptions, host module.HostService, feed *module.Feed) (*delivery.Delivery, error) {
	if o.Queue == nil {
		queue, err := b.deliveryQueue()
		if err != nil {
			return nil, err
		}
		o.Queue = queue
	}
	if o.Gateway == nil {
		o.Gateway = b.gateway()
	}
	return b.delivery(o.Queue, o.Gateway, host, feed, o.Unread, o.Attention)
}
