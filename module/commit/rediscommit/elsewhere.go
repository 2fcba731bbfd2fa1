package rediscommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

// elsewhereTimeout bounds the question to all masters: long enough for those that
// answer at all, and short enough to leave a request time to try again.
const elsewhereTimeout = time.Second

// checkNotElsewhere returns an error unless no master of a cluster holds a key that
// was not found where its slot is.
//
// It may be elsewhere: when the source of a slot's move dies, the replica that takes
// over knows nothing of the move and answers that there is no such key, while the
// target has it and shows it to nobody. To create the value then would replace the
// user's own by another.
//
// A master that does not answer may hold the key, too, unless the cluster has given
// it up and another one has its slots: that is its replica, which is asked.
func (n *nodes) checkNotElsewhere(ctx context.Context, key string) error {
	cluster, isCluster := n.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, elsewhereTimeout)
	defer cancel()
	nodes, err := cluster.ClusterNodes(ctx).Result()
	if err != nil {
		return fmt.Errorf("cannot tell whether another master has the key: CLUSTER NODES: %w", err)
	}
	return checkMasters(ctx, cluster, key, nodes)
}

// checkMasters asks the masters that a node of the cluster has named. That node may
// have just started again and know nothing of a takeover: its old master is dead, or
// back without a key, and the new one is not among those that it names. So the owner
// of the slot is asked for the masters, too, and where one does not answer, all who
// do: whoever knows that it was replaced knows by whom.
func checkMasters(ctx context.Context, cluster *redis.ClusterClient, key, nodes string) error {
	q := inquiry{cluster: cluster, key: key, known: clientsOf(ctx, cluster), replaced: map[string]bool{}}
	defer q.close()
	q.ask(ctx, readMasters(nodes))
	for _, m := range slices.Clone(q.asked) {
		if m.serves || m.err == nil && q.isIncomplete() {
			q.ask(ctx, readMasters(m.client.ClusterNodes(ctx).Val())) // none if it does not answer
		}
	}
	return q.verdict()
}

// inquiry asks the masters of a cluster for a key.
type inquiry struct {
	cluster  *redis.ClusterClient
	key      string
	known    map[string]*redis.Client // see clientsOf
	asked    clusterMasters
	replaced map[string]bool // by id, those that the cluster has given up
}

// clusterMaster is a master as a node of the cluster sees it, and what it answers.
type clusterMaster struct {
	id         string
	addresses  []string // at least one
	isReplaced bool     // the cluster has given it up, and it has no slots

	client *redis.Client
	isOurs bool // the client is to be closed

	holds  bool // the key
	serves bool // the slot
	err    error
}

type clusterMasters []*clusterMaster

// ask asks masters at the same time, each once.
func (q *inquiry) ask(ctx context.Context, masters clusterMasters) {
	var asking sync.WaitGroup
	for _, m := range masters {
		if m.isReplaced {
			q.replaced[m.id] = true
			continue
		}
		if slices.ContainsFunc(q.asked, func(one *clusterMaster) bool { return one.id == m.id }) {
			continue
		}
		for _, address := range m.addresses {
			m.client = cmp.Or(m.client, q.known[address])
		}
		if m.client == nil {
			m.client, m.isOurs = newNodeClient(q.cluster.Options(), m.addresses[0]), true
		}
		q.asked = append(q.asked, m)
		asking.Go(func() { m.ask(ctx, q.key) })
	}
	asking.Wait()
}

// clientsOf returns the clients of the masters that the cluster client knows, by
// address. The target of a move that has no slots yet is not among them.
func clientsOf(ctx context.Context, cluster *redis.ClusterClient) map[string]*redis.Client {
	var mu sync.Mutex
	known := map[string]*redis.Client{}
	// Without them, others are made.
	_ = cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		known[node.Options().Addr] = node
		return nil
	})
	return known
}

// isIncomplete reports whether a master has not answered.
func (q *inquiry) isIncomplete() bool {
	return slices.ContainsFunc(q.asked, func(m *clusterMaster) bool { return m.err != nil })
}

// verdict is what the answers come to.
func (q *inquiry) verdict() error {
	serves := false
	for _, m := range q.asked {
		if m.holds {
			return fmt.Errorf("another master has the key, since a move of its slot was interrupted: the Redis at %s", m.addresses[0])
		}
		serves = serves || m.serves
	}
	for _, m := range q.asked {
		if m.err != nil && !q.replaced[m.id] {
			return fmt.Errorf("cannot tell whether another master has the key: the Redis at %s: %w", m.addresses[0], m.err)
		}
	}
	if !serves {
		return errors.New("cannot tell whether another master has the key: none serves its slot")
	}
	return nil
}

func (q *inquiry) close() {
	for _, m := range q.asked {
		if m.isOurs {
			_ = m.client.Close() // nothing waits for it
		}
	}
}

// mostKeys bounds how many names of keys of a slot are looked through.
const mostKeys = 10_000

// ask asks a master, whatever it says of the slot. The owner of the slot, and the
// target of its move, answer EXISTS; the source of a move answers ASK for what it
// does not have. All others refuse, even if they have keys of the slot, which are
// in the answer to CLUSTER GETKEYSINSLOT only. That one is empty but for moves.
func (m *clusterMaster) ask(ctx context.Context, key string) {
	var exists *redis.IntCmd
	_, _ = m.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		p.Do(ctx, "ASKING")
		exists = p.Exists(ctx, key)
		return nil
	})
	err := exists.Err()
	_, isAsk := redis.IsAskError(err)
	_, isMoved := redis.IsMovedError(err)
	switch {
	case err == nil, isAsk:
		m.serves, m.holds = true, exists.Val() > 0
		return
	case !isMoved && !redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		m.err = err
		return
	}
	keys, err := m.client.ClusterGetKeysInSlot(ctx, redisclient.SlotOf(key), mostKeys).Result()
	m.holds, m.err = slices.Contains(keys, key) || len(keys) == mostKeys, err
}

// readMasters reads the masters in the answer to CLUSTER NODES, which are those that
// can be connected to.
func readMasters(text string) (masters clusterMasters) {
	isSlot := func(field string) bool { return !strings.HasPrefix(field, "[") } // which is one on its way
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		flags := strings.Split(fields[2], ",")
		if !slices.Contains(flags, "master") || slices.Contains(flags, "noaddr") || slices.Contains(flags, "handshake") {
			continue
		}
		masters = append(masters, &clusterMaster{
			id: fields[0], addresses: addressesOf(fields[1]),
			isReplaced: slices.Contains(flags, "fail") && !slices.ContainsFunc(fields[8:], isSlot),
		})
	}
	return masters
}

// addressesOf reads the second field of a node: IP:PORT@BUS, and the host name behind
// a comma, if the server has one.
func addressesOf(field string) []string {
	field, more, _ := strings.Cut(field, ",")
	name, _, _ := strings.Cut(more, ",")
	field, _, _ = strings.Cut(field, "@")
	i := max(strings.LastIndexByte(field, ':'), 0)
	ip, port := field[:i], strings.TrimPrefix(field[i:], ":")
	if name == "" {
		return []string{net.JoinHostPort(ip, port)}
	}
	return []string{net.JoinHostPort(name, port), net.JoinHostPort(ip, port)}
}

// newNodeClient returns a client of a node as a cluster client would make it, for
// one question.
func newNodeClient(o *redis.ClusterOptions, address string) *redis.Client {
	options := &redis.Options{
		Addr: address, Dialer: o.Dialer, OnConnect: o.OnConnect, TLSConfig: o.TLSConfig,
		Protocol: o.Protocol, Username: o.Username, Password: o.Password,
		CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		DialTimeout:                  o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1,
		DisableIdentity: o.DisableIdentity, IdentitySuffix: o.IdentitySuffix, MaintNotificationsConfig: o.MaintNotificationsConfig,
	}
	if o.NewClient != nil {
		return o.NewClient(options)
	}
	return redis.NewClient(options)
}
