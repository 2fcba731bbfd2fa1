package redisclient

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// shape is what the masters of a cluster say at one moment.
type shape struct {
	cluster *redis.ClusterClient
	known   map[string]*redis.Client // see clientsOf
	masters []*master                // sorted, without masters that the cluster has replaced

	version string    // changes when a slot moves or gets another master, not when a master falls silent
	changed time.Time // when the version last changed; zero if it has not
	replied string    // the masters that have replied
}

// master is a master that any master lists.
type master struct {
	id        string
	addresses []string // at least one
	epoch     int
	slots     []slotRange // as listed by itself, or else by others
	open      []int       // slots that it exports or imports

	silence     error // why it did not reply; nil after a reply
	isFailed    bool  // declared failed by the cluster
	hasReplicas bool  // that have not failed
}

type slotRange struct{ first, last int }

func (m *master) serves(slot int) bool { return m.servesAll(slot, slot) }

// servesAll reports whether a single range of the master's slots contains first to
// last. It is false for slots in adjacent ranges.
func (m *master) servesAll(first, last int) bool {
	return slices.ContainsFunc(m.slots, func(r slotRange) bool { return r.first <= first && last <= r.last })
}

// isLost reports whether the cluster has declared a silent master failed, and has no
// replica to replace it.
func (m *master) isLost() bool { return m.silence != nil && m.isFailed && !m.hasReplicas }

func (m *master) isReplaced() bool { return m.silence != nil && m.isFailed && len(m.slots) == 0 }

// patience is how long a master may take to reply, unless requests must wait for it.
const patience = 200 * time.Millisecond

// newShape asks all masters for the masters that they know, at first the masters that
// the client knows. After a restart, a node may list a master from before a failover.
// Any node that knows of a failover lists the new master. Silent masters are asked again
// if wait is set, unless they are lost.
func newShape(ctx context.Context, cluster *redis.ClusterClient, silences *silences, wait bool) (*shape, error) {
	b := newShapeBuilder(ctx, cluster, silences)
	var masters []*master
	for address := range b.known {
		masters = append(masters, &master{addresses: []string{address}})
	}
	b.askAll(ctx, masters)
	return b.finish(ctx, wait)
}

// shapeBuilder collects the replies of masters.
type shapeBuilder struct {
	*shape
	silences *silences
	all      map[string]*master // by id
	followed map[string]bool    // ids of masters with a replica that has not failed
	asked    []string           // addresses
}

func newShapeBuilder(ctx context.Context, cluster *redis.ClusterClient, silences *silences) *shapeBuilder {
	return &shapeBuilder{
		shape:    &shape{cluster: cluster, known: clientsOf(ctx, cluster.ForEachMaster)},
		silences: silences, all: map[string]*master{}, followed: map[string]bool{},
	}
}

// askAll asks masters, and then the masters that these list.
func (b *shapeBuilder) askAll(ctx context.Context, masters []*master) {
	for len(masters) > 0 {
		b.ask(ctx, patience, slices.DeleteFunc(masters, func(m *master) bool {
			b.asked = append(b.asked, m.addresses...)
			return b.silences.of(m) != nil
		}))
		masters = b.unasked()
	}
}

func (b *shapeBuilder) unasked() (masters []*master) {
	wasAsked := func(address string) bool { return slices.Contains(b.asked, address) }
	for _, m := range b.all {
		if m.silence != nil && !slices.ContainsFunc(m.addresses, wasAsked) {
			masters = append(masters, m)
		}
	}
	return masters
}

func (b *shapeBuilder) ask(ctx context.Context, limit time.Duration, masters []*master) {
	replies := make([]string, len(masters))
	var asking sync.WaitGroup
	for i, m := range masters {
		asking.Go(func() {
			b.silences.set(m, b.reach(ctx, limit, m, func(ctx context.Context, client *redis.Client) (err error) {
				replies[i], err = client.ClusterNodes(ctx).Result()
				return err
			}))
		})
	}
	asking.Wait()
	for i, reply := range replies {
		b.add(masters[i].addresses, reply)
	}
}

// add adds the reply of the master at some addresses to CLUSTER NODES.
func (b *shapeBuilder) add(addresses []string, reply string) {
	for _, n := range readNodes(reply) {
		switch {
		case n.is("slave"):
			b.followed[n.master] = b.followed[n.master] || !n.is("fail")
		case n.is("master"):
			m, found := b.all[n.id]
			if !found {
				m = &master{id: n.id, epoch: -1, silence: errSilent}
				b.all[n.id] = m
			}
			isOwn := n.is("myself")
			if isOwn {
				m.silence, n.addresses = nil, append(n.addresses, addresses...) // a node may not know its own address
			}
			if isOwn || m.silence != nil && n.epoch > m.epoch {
				m.epoch, m.slots, m.open = n.epoch, n.slots, n.open
			}
			m.addresses = append(m.addresses, n.addresses...)
			m.isFailed = m.isFailed || n.is("fail")
		}
	}
}

func (b *shapeBuilder) finish(ctx context.Context, wait bool) (*shape, error) {
	if wait {
		b.ask(ctx, searchTimeout, slices.DeleteFunc(b.list(), func(m *master) bool { return m.silence == nil || m.isLost() }))
	}
	b.masters = b.list()
	var version []string
	for _, m := range b.masters {
		fields := []string{m.id, strconv.Itoa(m.epoch)}
		for _, r := range m.slots {
			fields = append(fields, strconv.Itoa(r.first)+"-"+strconv.Itoa(r.last))
		}
		for _, slot := range m.open {
			fields = append(fields, "["+strconv.Itoa(slot)+"]")
		}
		version = append(version, strings.Join(fields, " "))
		if m.silence == nil {
			b.replied += m.id + " "
		}
	}
	b.version = strings.Join(version, "\n")
	if b.replied == "" {
		return nil, errors.New("no master of the cluster replies")
	}
	return b.shape, nil
}

var errSilent = errors.New("it does not reply")

// list returns the masters that the cluster has not replaced.
func (b *shapeBuilder) list() (masters []*master) {
	for _, m := range b.all {
		m.hasReplicas = b.followed[m.id]
		if m.silence != nil {
			m.silence = cmp.Or(b.silences.of(m), errSilent)
		}
		if !m.isReplaced() {
			masters = append(masters, m)
		}
	}
	slices.SortFunc(masters, func(a, b *master) int { return cmp.Compare(a.id, b.id) })
	return masters
}

// isOpen reports whether a master exports or imports a slot.
func (s *shape) isOpen(slot int) bool {
	return slices.ContainsFunc(s.masters, func(m *master) bool { return slices.Contains(m.open, slot) })
}

// isServedBy reports whether a node has replied and is the only one that serves a slot,
// according to itself and to others. It is false for a nil node.
func (s *shape) isServedBy(slot int, node *redis.Client) bool {
	var serving []*master
	for _, m := range s.masters {
		if m.serves(slot) {
			serving = append(serving, m)
		}
	}
	return node != nil && len(serving) == 1 && serving[0].silence == nil && slices.Contains(serving[0].addresses, node.Options().Addr)
}

// reach calls do with a client of a master, for a limited time, and again if the
// connection breaks.
func (s *shape) reach(ctx context.Context, limit time.Duration, m *master, do func(context.Context, *redis.Client) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, found := s.clientOf(m)
	if !found {
		client = newNodeClient(s.cluster.Options(), m.addresses[0], 1)
		defer client.Close()
	}
	for range maxSendings {
		if err = do(ctx, client); !isBroken(err) {
			break
		}
	}
	return err
}

func (s *shape) clientOf(m *master) (client *redis.Client, found bool) {
	for _, address := range m.addresses {
		if client, found = s.known[address]; found {
			break
		}
	}
	return client, found
}

// isBroken reports whether a connection broke before a reply, which says nothing about the
// next one.
func isBroken(err error) bool { return lacksReply(err) && !isUnsent(err) && !isTimeout(err) }

// clientsOf returns the cluster client's own clients by address. It lacks masters
// without slots, like the target of a new move.
func clientsOf(ctx context.Context, forEach func(context.Context, func(context.Context, *redis.Client) error) error) map[string]*redis.Client {
	ctx, cancel := context.WithTimeout(ctx, patience) // the client may ask a silent node for the others
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

// silences are the errors of masters that could not be reached lately, by address.
// Requests do not wait for these masters.
type silences struct {
	mu  sync.Mutex
	all map[string]silence
}

type silence struct {
	since time.Time
	err   error
}

func newSilences() *silences { return &silences{all: map[string]silence{}} }

// silenceAge is how long a silent master is not asked again.
const silenceAge = 5 * time.Second

func (s *silences) of(m *master) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range m.addresses {
		if last, found := s.all[address]; found && time.Since(last.since) < silenceAge {
			return last.err
		}
	}
	return nil
}

func (s *silences) set(m *master, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range m.addresses {
		delete(s.all, address)
		if lacksReply(err) && !isBroken(err) {
			s.all[address] = silence{time.Now(), err}
		}
	}
}

// listed is a line of CLUSTER NODES.
type listed struct {
	id        string
	addresses []string
	flags     []string
	master    string // of a replica
	epoch     int
	slots     []slotRange
	open      []int // slots that move; a node lists only its own
}

func (n listed) is(flag string) bool { return slices.Contains(n.flags, flag) }

// readNodes skips nodes without an address.
func readNodes(text string) (nodes []listed) {
	const epoch, firstSlot = 6, 8
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < firstSlot {
			continue
		}
		n := listed{id: fields[0], addresses: addressesOf(fields[1]), flags: strings.Split(fields[2], ","), master: fields[3]}
		if n.is("noaddr") || n.is("handshake") {
			continue
		}
		n.epoch, _ = strconv.Atoi(fields[epoch])
		for _, field := range fields[firstSlot:] {
			text, isOpen := strings.CutPrefix(field, "[")
			first, last, isRange := strings.Cut(text, "-")
			from, _ := strconv.Atoi(first)
			if isOpen {
				n.open = append(n.open, from)
				continue
			}
			to := from
			if isRange {
				to, _ = strconv.Atoi(last)
			}
			n.slots = append(n.slots, slotRange{from, to})
		}
		nodes = append(nodes, n)
	}
	return nodes
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
