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

// searchTimeout leaves a request time to try again.
const searchTimeout = time.Second

// checkOtherMasters returns an error if a master of a cluster may have a key which the
// owner of the key's slot lacks.
//
// This can happen when the source of a slot's move dies. The replica that takes over
// does not know of the move and replies that the key is missing. The target has the key
// but does not serve it. Creating the value again would replace the user's stored
// value.
//
// A master that does not reply may have the key, unless the cluster has replaced it.
func (n *nodes) checkOtherMasters(ctx context.Context, key string) error {
	cluster, isCluster := n.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	nodes, err := cluster.ClusterNodes(ctx).Result()
	if err != nil {
		return fmt.Errorf("cannot tell whether another master has the key: CLUSTER NODES: %w", err)
	}
	return checkMasters(ctx, cluster, key, nodes)
}

// checkMasters asks the masters in a node's reply to CLUSTER NODES. After a restart,
// that node may list a master from before a failover. So checkMasters also asks the
// masters that the slot's owner lists and, if a master is silent, the masters that all
// others list. Any node that knows of a failover lists the new master.
func checkMasters(ctx context.Context, cluster *redis.ClusterClient, key, nodes string) error {
	s := masterSearch{cluster: cluster, key: key, known: clientsOf(ctx, cluster), replaced: map[string]bool{}}
	defer s.close()
	s.ask(ctx, readMasters(nodes))
	for _, m := range slices.Clone(s.asked) {
		if m.serves || m.err == nil && s.isIncomplete() {
			s.ask(ctx, readMasters(m.client.ClusterNodes(ctx).Val())) // empty without a reply
		}
	}
	return s.result()
}

type masterSearch struct {
	cluster  *redis.ClusterClient
	key      string
	known    map[string]*redis.Client // see clientsOf
	asked    clusterMasters
	replaced map[string]bool // ids of masters that the cluster has replaced
}

type clusterMaster struct {
	id         string
	addresses  []string // at least one
	isReplaced bool     // declared failed, without slots

	client *redis.Client
	isOurs bool // we must close the client

	holds  bool // has the key
	serves bool // owns the slot
	err    error
}

type clusterMasters []*clusterMaster

func (s *masterSearch) ask(ctx context.Context, masters clusterMasters) {
	var asking sync.WaitGroup
	for _, m := range masters {
		if m.isReplaced {
			s.replaced[m.id] = true
			continue
		}
		if slices.ContainsFunc(s.asked, func(other *clusterMaster) bool { return other.id == m.id }) {
			continue
		}
		for _, address := range m.addresses {
			m.client = cmp.Or(m.client, s.known[address])
		}
		if m.client == nil {
			m.client, m.isOurs = newNodeClient(s.cluster.Options(), m.addresses[0]), true
		}
		s.asked = append(s.asked, m)
		asking.Go(func() { m.ask(ctx, s.key) })
	}
	asking.Wait()
}

// clientsOf returns the cluster client's own clients by address. It lacks masters
// without slots, like the target of a new move.
func clientsOf(ctx context.Context, cluster *redis.ClusterClient) map[string]*redis.Client {
	var mu sync.Mutex
	known := map[string]*redis.Client{}
	// On an error, the search makes its own clients.
	_ = cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		known[node.Options().Addr] = node
		return nil
	})
	return known
}

func (s *masterSearch) isIncomplete() bool {
	return slices.ContainsFunc(s.asked, func(m *clusterMaster) bool { return m.err != nil })
}

func (s *masterSearch) result() error {
	serves := false
	for _, m := range s.asked {
		if m.holds {
			return fmt.Errorf("another master has the key, since a move of its slot was interrupted: the Redis at %s", m.addresses[0])
		}
		serves = serves || m.serves
	}
	for _, m := range s.asked {
		if m.err != nil && !s.replaced[m.id] {
			return fmt.Errorf("cannot tell whether another master has the key: the Redis at %s: %w", m.addresses[0], m.err)
		}
	}
	if !serves {
		return errors.New("cannot tell whether another master has the key: no master serves its slot")
	}
	return nil
}

func (s *masterSearch) close() {
	for _, m := range s.asked {
		if m.isOurs {
			_ = m.client.Close()
		}
	}
}

const maxSlotKeys = 10_000

// ask asks a master for a key, whether or not it owns the slot. The owner and the
// target of a move reply to EXISTS; the source of a move replies ASK for a missing key.
// Other masters refuse, but CLUSTER GETKEYSINSLOT shows their keys.
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
	keys, err := m.client.ClusterGetKeysInSlot(ctx, redisclient.SlotOf(key), maxSlotKeys).Result()
	m.holds, m.err = slices.Contains(keys, key) || len(keys) == maxSlotKeys, err
}

// readMasters skips masters without an address.
func readMasters(text string) (masters clusterMasters) {
	isSlot := func(field string) bool { return !strings.HasPrefix(field, "[") } // moving slots have brackets
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

// addressesOf reads a node's second field: IP:PORT@BUS, then perhaps a comma and the
// host name.
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

// newNodeClient returns a client with the cluster client's settings, but without
// retries.
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
