package hostile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pushfx/pushfx/module/pushrule"
	"github.com/pushfx/pushfx/module/retry"
	"github.com/pushfx/pushfx/module/stored"
)

// result is what was measured of a kind, over all rounds.
type result struct {
	kind               kind
	alone50, alone99   []time.Duration
	beside50, beside99 []time.Duration
	worst              time.Duration // wait beside the hostile clients
	failed             int           // requests of well-behaved users
	answers            map[string]int
	sent               int64 // bytes of the hostile clients
	attacked           time.Duration
	quiet, most        memory
}

// calm is between two measurements, for the connections of the first to end.
const calm = 200 * time.Millisecond

// measure measures all kinds and prints a table.
func measure(ctx context.Context, p plan) error {
	s, err := startServers(ctx, p.program, p.host)
	if err != nil {
		return err
	}
	defer s.Close()
	good := newSteady(s.host.Address)
	if err := good.settle(ctx); err != nil {
		return err
	}
	good.run(ctx, p.phase) // to warm up
	fmt.Printf("%d well-behaved users, together %d requests/s on %d connections; %d rounds of %v alone and %v beside each kind\n\n",
		users, steadyRate, connections, p.rounds, p.phase, p.phase)
	var results []*result
	for i, k := range p.kinds {
		fmt.Fprintf(os.Stderr, "%d/%d %s\n", i+1, len(p.kinds), k.name)
		r, err := measureKind(ctx, s, good, k, p)
		if err != nil {
			printTable(results)
			return fmt.Errorf("%s: %w", k.name, err)
		}
		results = append(results, r)
	}
	printTable(results)
	return nil
}

// measureKind measures alone and beside a kind of hostile clients in turn.
func measureKind(ctx context.Context, s *machine, good *steady, k kind, p plan) (*result, error) {
	r := &result{kind: k, answers: map[string]int{}}
	if err := good.fillPushers(ctx, k.pushers); err != nil {
		return nil, err
	}
	if k.password {
		if err := good.setPassword(ctx, s); err != nil {
			return nil, err
		}
	}
	for range p.rounds {
		if err := s.prepare(ctx, k); err != nil {
			return nil, err
		}
		if err := r.alone(ctx, s, good, p.phase); err != nil {
			return nil, err
		}
		if err := r.beside(ctx, s, good, p.phase); err != nil {
			return nil, err
		}
		_ = retry.Sleep(ctx, calm)
	}
	return r, nil
}

func (r *result) alone(ctx context.Context, s *machine, good *steady, length time.Duration) error {
	w, m := s.observe(ctx, good, length)
	r.quiet = memory{max(r.quiet.host, m.host), max(r.quiet.redis, m.redis)}
	r.alone50 = append(r.alone50, w.quantile(.5))
	r.alone99 = append(r.alone99, w.quantile(.99))
	return ctx.Err()
}

func (r *result) beside(ctx context.Context, s *machine, good *steady, length time.Duration) error {
	end, err := attackBeside(ctx, r.kind.name, s.host.Address, length)
	if err != nil {
		return err
	}
	w, m := s.observe(ctx, good, length)
	t, err := end()
	if err != nil {
		return err
	}
	r.most = memory{max(r.most.host, m.host), max(r.most.redis, m.redis)}
	r.beside50 = append(r.beside50, w.quantile(.5))
	r.beside99 = append(r.beside99, w.quantile(.99))
	r.worst = max(r.worst, w.quantile(1))
	r.failed += w.failed
	r.attacked += length
	r.sent += t.Bytes
	for answer, n := range t.Answers {
		r.answers[answer] += n
	}
	return nil
}

// observe has the well-behaved users make requests, and watches the memory.
func (s *machine) observe(ctx context.Context, good *steady, length time.Duration) (waits, memory) {
	watched, stop := context.WithCancel(ctx)
	most := make(chan memory, 1)
	go func() { most <- s.watchMemory(watched) }()
	w := good.run(ctx, length)
	stop()
	return w, <-most
}

// prepare gives the hostile user what the kind starts with.
func (s *machine) prepare(ctx context.Context, k kind) error {
	key := stored.Keys{}.Rules("@mallory:localhost")
	if err := s.Client.Del(ctx, key).Err(); err != nil {
		return err
	}
	rules := make([]string, k.rules)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"rule_id":"!room-%d:localhost","default":false,"enabled":true,"actions":["notify"]}`, i)
	}
	defaults := pushrule.ServerDefault("@mallory:localhost")
	set := strings.Replace(defaults.JSON(), `"room":[`, `"room":[`+strings.Join(rules, ","), 1)
	event := `{"type":"m.push_rules","content":{"global":` + set + `}}`
	if err := s.Client.Set(ctx, key, event, 0).Err(); err != nil {
		return err
	}
	return nil
}

// fillPushers gives the hostile user pushers, as fast as the host lets it.
func (s *steady) fillPushers(ctx context.Context, number int) error {
	for i := range number {
		body := pusherBody(fmt.Sprint("hostile-", i), strings.Repeat("x", 2200))
		err := errTooMany
		for errors.Is(err, errTooMany) {
			err = s.do(ctx, mallory, turn{http.MethodPost, "/pushers/set", nil}, body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setPassword gives the hostile user a password of their own.
func (s *steady) setPassword(ctx context.Context, m *machine) error {
	if err := m.Client.HDel(ctx, "demo:account:{@mallory:localhost}", "password").Err(); err != nil {
		return err
	}
	body := fmt.Sprintf(`{"auth":{"type":"m.login.password","user":"mallory","password":"demo"},"new_password":%q}`, ownPassword)
	return s.do(ctx, mallory, turn{http.MethodPost, "/account/password", nil}, body)
}

// printTable prints what was measured.
func printTable(results []*result) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "kind\tp50 alone\tbeside\tp99 alone\tbeside\tratio\tlongest\tfailed\thostile/s\tanswers\tMB/s\thost RSS\tRedis RSS")
	for _, r := range results {
		p99, alone := median(r.beside99), median(r.alone99)
		seconds := r.attacked.Seconds()
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%.2f\t%s\t%d\t%.0f\t%s\t%.1f\t%s\t%s\n",
			r.kind.name, ms(median(r.alone50)), ms(median(r.beside50)), ms(alone), ms(p99),
			float64(p99)/float64(alone), ms(r.worst), r.failed, float64(r.total())/seconds, r.statuses(),
			float64(r.sent)/seconds/1e6, mib(r.quiet.host, r.most.host), mib(r.quiet.redis, r.most.redis))
	}
	table.Flush()
}

func (r *result) total() (n int) {
	for answer, count := range r.answers {
		if answer != "cut" {
			n += count
		}
	}
	return n
}

func (r *result) statuses() string {
	var parts []string
	for _, answer := range slices.Sorted(maps.Keys(r.answers)) {
		parts = append(parts, fmt.Sprintf("%s:%d", answer, r.answers[answer]))
	}
	return strings.Join(parts, " ")
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2fms", float64(d.Microseconds())/1000) }

func mib(quiet, most int64) string { return fmt.Sprintf("%d→%dMiB", quiet>>20, most>>20) }
