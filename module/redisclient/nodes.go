package redisclient

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/retry"
)

// listed is a node of a cluster, as a line of CLUSTER NODES lists it.
type listed struct {
	id        string
	addresses []string // at least one
	flags     []string
	master    string // id; "-" for a master
	hasSlots  bool
	isMoving  bool   // a slot is moving from or to it; only its own list says so
	state     string // the line without what changes all the time
}

func (n *listed) is(flag string) bool { return slices.Contains(n.flags, flag) }

// readNodes skips nodes without an address.
func readNodes(text string) (nodes []*listed) {
	const pingSent, epoch, firstSlot = 4, 6, 8
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < firstSlot {
			continue
		}
		n := &listed{id: fields[0], addresses: addressesOf(fields[1]), flags: strings.Split(fields[2], ","), master: fields[3]}
		for _, slots := range fields[firstSlot:] {
			isMove := strings.HasPrefix(slots, "[")
			n.hasSlots, n.isMoving = n.hasSlots || !isMove, n.isMoving || isMove
		}
		n.state = strings.Join(slices.Delete(fields, pingSent, epoch), " ")
		if !n.is("noaddr") && !n.is("handshake") {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// addressesOf reads a node's second field: IP:PORT@BUS, then perhaps a comma and the
// host name, which hosts need not be able to resolve.
func addressesOf(field string) []string {
	field, more, _ := strings.Cut(field, ",")
	name, _, _ := strings.Cut(more, ",")
	field, _, _ = strings.Cut(field, "@")
	i := max(strings.LastIndexByte(field, ':'), 0)
	ip, port := field[:i], strings.TrimPrefix(field[i:], ":")
	addresses := []string{net.JoinHostPort(ip, port)}
	if name != "" {
		addresses = append(addresses, net.JoinHostPort(name, port))
	}
	return addresses
}

// union adds the nodes that only the second list has, or has as masters.
func union(nodes, others []*listed) []*listed {
	for _, other := range others {
		i := slices.IndexFunc(nodes, func(n *listed) bool { return n.id == other.id })
		if i < 0 {
			nodes = append(nodes, other)
		} else if nodes[i].is("slave") && other.is("master") {
			nodes[i] = other
		}
	}
	return nodes
}

// reach calls do with a client of a node, and again if the connection breaks. It tries
// the node's addresses one after the other, each for patience at most.
func reach(ctx context.Context, o *redis.ClusterOptions, known map[string]*redis.Client, n *listed, do func(context.Context, *redis.Client) error) (err error) {
	for _, address := range n.addresses {
		if client, found := known[address]; found {
			return try(ctx, client, do)
		}
	}
	for _, address := range n.addresses {
		client := newNodeClient(o, address, 1)
		err = try(ctx, client, do)
		_ = client.Close()
		if !lacksReply(err) {
			break
		}
	}
	return err
}

// patience is how long a node may take to reply.
const patience = time.Second

func try(ctx context.Context, client *redis.Client, do func(context.Context, *redis.Client) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for range maxSendings {
		if err = do(ctx, client); !lacksReply(err) || isUnsent(err) || isTimeout(err) || errors.Is(err, retry.ErrSilent) {
			break
		}
	}
	return err
}

// clientsOf returns the cluster client's own clients by address. It lacks masters
// without slots, like the target of a new move.
func clientsOf(ctx context.Context, forEach func(context.Context, func(context.Context, *redis.Client) error) error) map[string]*redis.Client {
	const patience = 200 * time.Millisecond // the client may ask a silent node for the others
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var mu sync.Mutex
	known := map[string]*redis.Client{}
	// One node's error does not matter for the others.
	_ = forEach(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		known[node.Options().Addr] = node
		return nil
	})
	return known
}

// newNodeClient returns a client with the cluster client's settings, but without
// retries.
func newNodeClient(o *redis.ClusterOptions, address string, poolSize int) *redis.Client {
	options := &redis.Options{
		Addr: address, Dialer: o.Dialer, OnConnect: o.OnConnect, TLSConfig: o.TLSConfig,
		Protocol: o.Protocol, Username: o.Username, Password: o.Password,
		CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		DialTimeout:                  o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: poolSize,
		DisableIdentity: o.DisableIdentity, IdentitySuffix: o.IdentitySuffix, MaintNotificationsConfig: o.MaintNotificationsConfig,
	}
	if o.NewClient != nil {
		return o.NewClient(options)
	}
	return redis.NewClient(options)
}
