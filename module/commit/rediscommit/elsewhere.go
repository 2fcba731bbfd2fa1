package rediscommit

import (
	"context"
	"errors"
	"fmt"
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
// A master that does not answer may hold the key, too. But one that the cluster has
// given up and that has no slots was replaced by its replica, which is asked.
func (n *nodes) checkNotElsewhere(ctx context.Context, key string) error {
	cluster, isCluster := n.client.(*redis.ClusterClient)
	if !isCluster {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, elsewhereTimeout)
	defer cancel()
	masters, err := findMasters(ctx, cluster, key)
	if err != nil {
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	}
	defer masters.close()
	holder, err := masters.holderOf(ctx, key)
	switch {
	case holder != "":
		return fmt.Errorf("another master has the key, since a move of its slot was interrupted: the Redis at %s", holder)
	case err != nil:
		return fmt.Errorf("cannot tell whether another master has the key: %w", err)
	}
	return nil
}

// clusterMasters are clients of all masters of a cluster.
type clusterMasters struct {
	owner  *redis.Client   // of the key's slot
	others []*redis.Client // all but the owner
	own    []*redis.Client // of the others, those that are to be closed
}

func (m *clusterMasters) close() {
	for _, client := range m.own {
		_ = client.Close() // nothing waits for it
	}
}

// findMasters asks the owner of a key's slot. A cluster client knows the masters
// that have slots; the target of a move may have none yet.
func findMasters(ctx context.Context, cluster *redis.ClusterClient, key string) (*clusterMasters, error) {
	owner, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	text, err := owner.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("CLUSTER NODES on %s: %w", owner.Options().Addr, err)
	}
	m := &clusterMasters{owner: owner}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if master != owner {
			m.others = append(m.others, master)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	withSlots, without := readMasters(text)
	if known := len(m.others) + 1; known < withSlots {
		cluster.ReloadState(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("%d masters have slots, and the client knows %d", withSlots, known)
	}
	for _, address := range without {
		m.own = append(m.own, newNodeClient(cluster.Options(), address))
	}
	m.others = append(m.others, m.own...)
	return m, nil
}

// readMasters reads the answer to CLUSTER NODES, of masters that the cluster has not
// given up: how many have slots, and the addresses of those that have none.
func readMasters(text string) (withSlots int, without []string) {
	isOut := func(flag string) bool {
		return flag == "slave" || flag == "fail" || flag == "noaddr" || flag == "handshake"
	}
	isSlot := func(field string) bool { return !strings.HasPrefix(field, "[") } // which is one on its way
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 8 || slices.ContainsFunc(strings.Split(fields[2], ","), isOut):
		case slices.ContainsFunc(fields[8:], isSlot):
			withSlots++
		default:
			without = append(without, addressOf(fields[1]))
		}
	}
	return withSlots, without
}

// addressOf reads the second field of a node: IP:PORT@BUS, and the host name behind
// a comma, if the server has one.
func addressOf(field string) string {
	field, name, _ := strings.Cut(field, ",")
	name, _, _ = strings.Cut(name, ",")
	address, _, _ := strings.Cut(field, "@")
	if i := strings.LastIndexByte(address, ':'); name != "" && i >= 0 {
		return name + address[i:]
	}
	return address
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

// holderOf asks all masters at the same time, and returns the address of one that
// holds the key, or the error of one that cannot be asked.
func (m *clusterMasters) holderOf(ctx context.Context, key string) (holder string, err error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	var failures []error
	ask := func(master *redis.Client, holds func(context.Context, *redis.Client, string) (bool, error)) {
		asking.Go(func() {
			found, err := holds(ctx, master, key)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, fmt.Errorf("the Redis at %s: %w", master.Options().Addr, err))
			}
			if found {
				holder = master.Options().Addr
			}
		})
	}
	ask(m.owner, ownerHolds)
	for _, master := range m.others {
		ask(master, otherHolds)
	}
	asking.Wait()
	return holder, errors.Join(failures...)
}

// ownerHolds reports whether the owner of the slot has a key. If the slot is on its
// way to another master, it answers ASK for what it does not have.
func ownerHolds(ctx context.Context, owner *redis.Client, key string) (bool, error) {
	found, err := owner.Exists(ctx, key).Result()
	if _, isAsk := redis.IsAskError(err); isAsk {
		return false, nil
	}
	return found > 0, err
}

// mostKeys bounds how many names of keys of a slot are looked through.
const mostKeys = 10_000

// otherHolds reports whether a master has a key, whatever it says of the slot:
// that the slot is on its way to it, that another one has it, or that the cluster
// is down. The answer to CLUSTER GETKEYSINSLOT depends on none of that, and is
// empty but for moves that are under way or were interrupted.
func otherHolds(ctx context.Context, master *redis.Client, key string) (bool, error) {
	keys, err := master.ClusterGetKeysInSlot(ctx, redisclient.SlotOf(key), mostKeys).Result()
	return slices.Contains(keys, key) || len(keys) == mostKeys, err
}
