package redisclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Healthy implements module.Health. One working master is enough, unless any master
// evicts keys or does not fit the client.
func (m *Monitor) Healthy(ctx context.Context) error {
	if m.client == nil {
		return nil
	}
	s := m.survey(ctx)
	if len(s.evicting) > 0 || len(s.misfits) > 0 || len(s.replicas) > 0 || s.working == 0 {
		return errors.Join(joinSorted(s.evicting), joinSorted(s.misfits), joinSorted(s.replicas), joinSorted(s.refused), joinSorted(s.failures), s.err)
	}
	return nil
}

// survey holds the replies of the masters. Errors name their master's address.
type survey struct {
	mu       sync.Mutex
	working  int     // masters that can serve
	failures []error // masters that cannot serve
	refused  []error // masters whose ACL lacks the rights of a part of the module
	misfits  []error // servers of the wrong kind
	replicas []error // servers that are no masters, perhaps during a failover
	evicting []error // masters that evict keys
	denied   []error // masters that refuse INFO
	err      error   // the error of finding the masters
}

// surveyTimeout bounds a survey: half of it is for finding the masters, for which a
// cluster client may first ask a silent node.
const surveyTimeout = time.Second

func (m *Monitor) survey(ctx context.Context) *survey {
	search, cancel := context.WithTimeout(ctx, surveyTimeout/2)
	defer cancel()
	var s survey
	s.err = EachMaster(search, m.client, func(_ context.Context, master redis.UniversalClient) error {
		ctx, cancel := context.WithTimeout(ctx, surveyTimeout/2)
		defer cancel()
		m.ask(ctx, master, &s)
		return nil
	})
	m.evicting.Store(int64(len(s.evicting)))
	return &s
}

func (m *Monitor) ask(ctx context.Context, master redis.UniversalClient, s *survey) {
	var hello, script *redis.Cmd
	var memory *redis.StringCmd
	tries := make([]*redis.Cmd, len(m.parts))
	_, _ = master.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		hello = p.Do(ctx, "HELLO")
		script = p.Eval(ctx, "return 1", nil)
		memory = p.Info(ctx, "memory") // needs fewer rights than CONFIG GET
		for i, part := range m.parts {
			tries[i] = p.Do(ctx, part.command...) // a cluster checks rights before it redirects
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(errs *[]error, form string, cause error) {
		*errs = append(*errs, fmt.Errorf(form, address(master), cause))
	}
	if redis.HasErrorPrefix(memory.Err(), "NOPERM") && !m.cfg.AllowEviction {
		add(&s.denied, "cannot tell whether the Redis at %s evicts keys: %w", memory.Err())
	}
	about := properties(hello)
	refused := false
	for i, part := range m.parts {
		if err := tries[i].Err(); redis.HasErrorPrefix(err, "NOPERM") {
			add(&s.refused, "the Redis at %s lacks the rights of "+part.name+" in its ACL: %w", err)
			refused = true
		}
	}
	eviction, misfit, role := evictionError(memory.Val()), misfitError(about, m.client), about["role"]
	switch {
	case script.Err() != nil:
		add(&s.failures, "the Redis at %s: cannot run a script: %w", script.Err())
	case eviction != nil && !m.cfg.AllowEviction:
		add(&s.evicting, "the Redis at %s %w", eviction)
	case role != "" && role != "master":
		add(&s.replicas, "the Redis at %s %w", fmt.Errorf("is a %s", role))
	case misfit != nil:
		add(&s.misfits, "the Redis at %s %w", misfit)
	case refused:
	default:
		s.working++
	}
}

// evictionError returns an error if a master evicts keys when its memory is full.
// Requests cannot detect an eviction, because an evicted user looks like a new one. The
// volatile policies are harmless: they evict only keys with an expiry. Rules and pushers
// have none, and the entry of a pushkey is missed only if a pusher that was taken is still
// stored.
func evictionError(info string) error {
	limited, policy := false, ""
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "maxmemory":
			limited = value != "0"
		case "maxmemory_policy":
			policy = value
		}
	}
	if !limited || policy == "" || policy == "noeviction" || strings.HasPrefix(policy, "volatile-") {
		return nil
	}
	return fmt.Errorf("evicts keys when its memory is full, since its maxmemory-policy is %s: users lose their push rules; set it to noeviction", policy)
}

// misfitError returns an error if a server is a node of a cluster but the client is not for a
// cluster, or the reverse. If HELLO is refused, about is empty, and the result nil.
func misfitError(about map[string]string, client redis.UniversalClient) error {
	_, forCluster := client.(*redis.ClusterClient)
	_, forOne := client.(*redis.Client)
	switch {
	case forOne && about["mode"] == "cluster":
		return errors.New("is a node of a cluster, but the client is for one server, a *redis.Client: " +
			"create it with redis.NewClusterClient, since NewUniversalClient with one address creates this one")
	case !forCluster && about["mode"] == "cluster":
		return fmt.Errorf("is a node of a cluster, of which a %T does not show the masters: provide the *redis.ClusterClient itself, and add its hooks with AddHook or OnNewNode", client)
	case forCluster && about["mode"] == "standalone":
		return errNoClusterNode
	}
	return nil
}

var errNoClusterNode = errors.New("is not a node of a cluster, but the client is a *redis.ClusterClient: create it with redis.NewClient")

func properties(hello *redis.Cmd) map[string]string {
	all := map[string]string{}
	add := func(name, value any) {
		if name, isText := name.(string); isText {
			all[name], _ = value.(string)
		}
	}
	switch reply := hello.Val().(type) {
	case map[any]any:
		for name, value := range reply {
			add(name, value)
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			add(reply[i], reply[i+1])
		}
	}
	return all
}

func joinSorted(errs []error) error {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
