package redisclient

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// shape is what the masters of a cluster say of themselves at one moment.
type shape struct {
	cluster *redis.ClusterClient
	known   map[string]*redis.Client // see clientsOf
	masters []*master                // without those that the cluster has replaced

	// version changes when a slot moves or gets another master; empty while a master is
	// silent.
	version string
}

// master is a master that any node lists.
type master struct {
	id         string
	addresses  []string // at least one
	isReplaced bool     // declared failed, without slots

	list  string   // its reply to CLUSTER NODES; empty without a reply
	line  []string // the fields about itself
	slots []slotRange
	open  []int // slots that it exports or imports
}

type slotRange struct{ first, last int }

func (m *master) serves(slot int) bool { return m.servesAll(slot, slot) }

// servesAll reports whether a single range of the master's slots contains first to
// last. It is false for slots in adjacent ranges.
func (m *master) servesAll(first, last int) bool {
	return slices.ContainsFunc(m.slots, func(r slotRange) bool { return r.first <= first && last <= r.last })
}

// newShape asks all masters for the masters that they know. After a restart, a node may
// list a master from before a failover. Any node that knows of a failover lists the new
// master.
func newShape(ctx context.Context, cluster *redis.ClusterClient) (*shape, error) {
	nodes, err := cluster.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, err
	}
	return shapeFrom(ctx, cluster, nodes), nil
}

func shapeFrom(ctx context.Context, cluster *redis.ClusterClient, nodes string) *shape {
	s := &shape{cluster: cluster, known: clientsOf(ctx, cluster)}
	listed, replaced := readMasters(nodes), map[string]bool{}
	for len(listed) > 0 {
		asked := len(s.masters)
		for _, m := range listed {
			replaced[m.id] = replaced[m.id] || m.isReplaced
			if !m.isReplaced && !slices.ContainsFunc(s.masters, func(other *master) bool { return other.id == m.id }) {
				s.masters = append(s.masters, m)
			}
		}
		listed = nil
		added := &shape{cluster: cluster, known: s.known, masters: s.masters[asked:]}
		added.each(func(m *master, client *redis.Client) { m.list = client.ClusterNodes(ctx).Val() })
		for _, m := range added.masters {
			listed = append(listed, readMasters(m.list)...)
		}
	}
	s.masters = slices.DeleteFunc(s.masters, func(m *master) bool { return m.list == "" && replaced[m.id] })
	s.setVersion()
	return s
}

func (s *shape) setVersion() {
	lines := make([]string, 0, len(s.masters))
	for _, m := range s.masters {
		if m.readOwnLine(); len(m.line) == 0 {
			return
		}
		const epoch = 6
		lines = append(lines, strings.Join(append([]string{m.id, m.line[1], m.line[epoch]}, m.line[firstSlot:]...), " "))
	}
	slices.Sort(lines)
	s.version = strings.Join(lines, "\n")
}

const firstSlot = 8 // field of a line of CLUSTER NODES

// readOwnLine reads what the master says of itself. A master that has become a replica
// serves no slots.
func (m *master) readOwnLine() {
	for line := range strings.Lines(m.list) {
		fields := strings.Fields(line)
		if len(fields) < firstSlot || !slices.Contains(strings.Split(fields[2], ","), "myself") {
			continue
		}
		m.line = fields
		for _, field := range fields[firstSlot:] {
			text, isOpen := strings.CutPrefix(field, "[")
			first, last, isRange := strings.Cut(text, "-")
			from, _ := strconv.Atoi(first)
			if isOpen {
				m.open = append(m.open, from)
				continue
			}
			to := from
			if isRange {
				to, _ = strconv.Atoi(last)
			}
			m.slots = append(m.slots, slotRange{from, to})
		}
	}
}

// isOpen reports whether a master exports or imports a slot.
func (s *shape) isOpen(slot int) bool {
	return slices.ContainsFunc(s.masters, func(m *master) bool { return slices.Contains(m.open, slot) })
}

// isServedBy reports whether a node is the only one that serves a slot. It is false for
// a nil node, and if a master has not replied.
func (s *shape) isServedBy(slot int, node *redis.Client) bool {
	var serving []*master
	for _, m := range s.masters {
		if m.serves(slot) {
			serving = append(serving, m)
		}
	}
	return node != nil && s.version != "" && len(serving) == 1 && slices.Contains(serving[0].addresses, node.Options().Addr)
}

// each calls do concurrently for each master, with a client for it.
func (s *shape) each(do func(*master, *redis.Client)) {
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, m := range s.masters {
		asking.Go(func() {
			for _, address := range m.addresses {
				if client, found := s.known[address]; found {
					do(m, client)
					return
				}
			}
			client := newNodeClient(s.cluster.Options(), m.addresses[0])
			defer client.Close()
			do(m, client)
		})
	}
}

// clientsOf returns the cluster client's own clients by address. It lacks masters
// without slots, like the target of a new move.
func clientsOf(ctx context.Context, cluster *redis.ClusterClient) map[string]*redis.Client {
	var mu sync.Mutex
	known := map[string]*redis.Client{}
	// One node's error does not matter for the others.
	_ = cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		known[node.Options().Addr] = node
		return nil
	})
	return known
}

// readMasters skips masters without an address.
func readMasters(text string) (masters []*master) {
	isSlot := func(field string) bool { return !strings.HasPrefix(field, "[") } // open slots have brackets
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < firstSlot {
			continue
		}
		flags := strings.Split(fields[2], ",")
		if !slices.Contains(flags, "master") || slices.Contains(flags, "noaddr") || slices.Contains(flags, "handshake") {
			continue
		}
		masters = append(masters, &master{
			id: fields[0], addresses: addressesOf(fields[1]),
			isReplaced: slices.Contains(flags, "fail") && !slices.ContainsFunc(fields[firstSlot:], isSlot),
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
