package assembly

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery"
	"github.com/pushfx/pushfx/module/delivery/channel/httppush"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/delivery/redisqueue"
	"github.com/pushfx/pushfx/module/feed"
	"github.com/pushfx/pushfx/module/mail"
	"github.com/pushfx/pushfx/module/mail/smtp"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/unread"
)

// DeliveryQueue returns the queue on Redis.
func (b *Builder) DeliveryQueue() (module.DeliveryQueue, error) {
	b.servers.Require("delivery", "ZCARD", b.keys().ShardGates(0))
	client, shared, options := b.redis()
	queue, err := redisqueue.New(client, shared, options)
	if err != nil {
		return nil, err
	}
	queue.Index.Shards = b.host.Config.Delivery.Shards
	return queue, nil
}

// Gateway returns the gateway of hosts without their own. It connects to allowed
// addresses only.
func (b *Builder) Gateway() module.Gateway {
	cfg := b.host.Config
	return httppush.NewGateway(newClient(cfg, cfg.PusherPolicy.AllowedPrefixes), newClient(cfg, cfg.WebPush.AllowedPrefixes))
}

func newClient(cfg Config, allowed []netip.Prefix) *http.Client {
	guard := dialguard.New(allowed...)
	client, transport := guard.Client(cfg.Delivery.MaxPerGateway), guard.Transport(cfg.Delivery.MaxPerGateway)
	transport.ResponseHeaderTimeout = 0
	client.Transport, client.Timeout = transport, 0 // the context of each request has Delivery.RequestTimeout
	return client
}

var (
	errChannelWithoutDelivery = errors.New("pushfx: a Channel needs delivery: include pushfx.Delivery beside pushfx.Module")

	errWebPushWithoutDelivery = errors.New("pushfx: Config.WebPush needs delivery: include pushfx.Delivery beside pushfx.Module, or set Options.Delivery")
)

// activation is the activation of pushers by delivery, which is built after the services.
type activation struct {
	*webpush.Channel
	b *Builder
}

// Invite implements [service.Activation].
func (a activation) Invite(ctx context.Context, user mxid.UserID, key pusher.Key) error {
	return a.b.delivery.Invite(ctx, user, key)
}

// Delivery returns what sends notifications. Mailer, composer, counts and attention may be nil.
func (b *Builder) Delivery(
	queue module.DeliveryQueue, gateway module.Gateway, mailer module.Mailer, composer module.MailComposer,
	host module.HostService, feed *feed.Feed, counts module.Unread, attention module.Attention,
) (*delivery.Delivery, error) {
	cfg := b.host.Config
	if err := b.checkMail(mailer, composer); err != nil {
		return nil, err
	}
	b.note("Mailer", mailer, (*smtp.Mailer)(nil))
	b.note("MailComposer", composer, (*mail.Composer)(nil))
	b.note("DeliveryQueue", queue, (*redisqueue.Queue)(nil))
	b.note("Gateway", gateway, (*httppush.Gateway)(nil))
	b.note("Unread", counts, (*unread.Service)(nil))
	b.note("Attention", attention, nil)
	d, err := delivery.New(delivery.Seams{
		Queue: queue, Gateway: gateway, Host: host, Feed: feed, Unread: counts, Attention: attention,
		Mailer: mailer, MailComposer: composer, ConfirmAddress: cfg.PusherPolicy.Email, Mail: cfg.Mail.Sending,
		Channels: b.channels, WebPush: cfg.WebPush, Now: b.servers.Clock().Now, Observer: b.observer,
	}, cfg.Delivery)
	if err != nil {
		return nil, err
	}
	b.delivery = d
	b.metrics.AddDelivery(d.Stats)
	return d, nil
}

// DeliveryParts are the parts of delivery that the host replaces or adds; see pushfx.DeliveryOptions.
type DeliveryParts struct {
	Unread    module.Unread
	Attention module.Attention
	Gateway   module.Gateway
	Queue     module.DeliveryQueue
	Channels  []module.Channel

	Mailer       module.Mailer
	MailComposer module.MailComposer
}

// DeliveryWith is Delivery for a host without a container.
func (b *Builder) DeliveryWith(
	o DeliveryParts, host module.HostService, feed *feed.Feed, unread *Counts,
) (*delivery.Delivery, error) {
	if o.Unread == nil && unread != nil {
		o.Unread = unread.Service
	}
	if o.Queue == nil {
		queue, err := b.DeliveryQueue()
		if err != nil {
			return nil, err
		}
		o.Queue = queue
	}
	if o.Gateway == nil {
		o.Gateway = b.Gateway()
	}
	var errs [2]error
	if o.Mailer == nil {
		o.Mailer, errs[0] = b.Mailer()
	}
	if o.MailComposer == nil {
		o.MailComposer, errs[1] = b.MailComposer()
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return b.Delivery(o.Queue, o.Gateway, o.Mailer, o.MailComposer, host, feed, o.Unread, o.Attention)
}
