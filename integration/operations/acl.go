package operations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Rights are the name and the rules of a Redis user.
type Rights struct {
	User  string
	Rules []string
}

// RightsBelow returns the rights of the ACL SETUSER lines below headings, for the user of the first.
func RightsBelow(t testing.TB, headings ...string) (r Rights) {
	t.Helper()
	for _, heading := range headings {
		_, line, _ := strings.Cut(Part(t, heading), "\nACL SETUSER ")
		line, _, _ = strings.Cut(line, "\n")
		words := strings.Fields(line)
		if len(words) < 2 {
			t.Fatalf("no ACL SETUSER below %q", heading)
		}
		if r.User == "" {
			r.User = words[0]
		}
		r.Rules = append(r.Rules, words[1:]...)
	}
	return r
}

// WithPrefix returns the rights for a KeyPrefix, made as the page says.
func (r Rights) WithPrefix(prefix string) Rights {
	rules := slices.Clone(r.Rules)
	for i, rule := range rules {
		if strings.ContainsAny(rule[:1], "~&") {
			rules[i] = rule[:1] + prefix + rule[1:]
		}
	}
	return Rights{r.User, rules}
}

// Password is the password of users with rights.
const Password = "x"

// SetUser returns the command that adds the rights.
func (r Rights) SetUser() []any {
	args := []any{"ACL", "SETUSER", r.User}
	for _, rule := range r.Rules {
		args = append(args, strings.Replace(rule, ">PASSWORD", ">"+Password, 1))
	}
	return args
}

// Guarded are servers on which users have few rights.
type Guarded []*redis.Client

// Each calls do for each server. An error ends the test.
func (g Guarded) Each(t testing.TB, do func(*redis.Client) error) {
	t.Helper()
	for _, server := range g {
		if err := do(server); err != nil {
			t.Fatalf("%s: %v", server.Options().Addr, err)
		}
	}
}

// Grant creates a user who has only these rights. It empties ACL LOG, the scripts and the statistics of commands.
func (g Guarded) Grant(t testing.TB, r Rights) {
	t.Helper()
	ctx := t.Context()
	g.Each(t, func(server *redis.Client) error {
		return errors.Join(
			server.ACLDelUser(ctx, r.User).Err(), server.Do(ctx, r.SetUser()...).Err(),
			server.ScriptFlush(ctx).Err(), server.ACLLogReset(ctx).Err(), server.ConfigResetStat(ctx).Err(),
		)
	})
}

// Know reports whether the servers know the rules.
func (g Guarded) Know(t testing.TB, r Rights) bool {
	err := g[0].Do(t.Context(), Rights{"probe", r.Rules}.SetUser()...).Err()
	g[0].ACLDelUser(t.Context(), "probe")
	return err == nil
}

// Refused returns what the servers have refused a user.
func (g Guarded) Refused(t testing.TB, user string) (all []string) {
	t.Helper()
	g.Each(t, func(server *redis.Client) error {
		entries, err := server.ACLLog(t.Context(), 100).Result()
		for _, entry := range entries {
			if entry.Username == user {
				all = append(all, fmt.Sprintf("NOPERM: %s %s", entry.Reason, entry.Object))
			}
		}
		return err
	})
	return all
}

// Unused returns the commands of the rules that no server has run.
func (g Guarded) Unused(t testing.TB, rules []string) []string {
	t.Helper()
	var ran strings.Builder
	g.Each(t, func(server *redis.Client) error {
		stats, err := server.Info(t.Context(), "commandstats").Result()
		ran.WriteString(stats)
		return err
	})
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		command, isCommand := strings.CutPrefix(rule, "+")
		return !isCommand || strings.Contains(ran.String(), "cmdstat_"+command+":")
	})
}
