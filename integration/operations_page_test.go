package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/operations"
)

func operatorPage(t *testing.T, heading string) string {
	t.Helper()
	part, err := operations.Section(heading)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func tableRows(part string) (rows [][]string) {
	inTable := 0
	for line := range strings.Lines(part) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 {
			inTable = 0
			continue
		}
		if inTable++; inTable <= 2 {
			continue
		}
		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

type aclLine struct {
	user  string
	rules []string
}

func aclLineBelow(t *testing.T, heading string) aclLine {
	t.Helper()
	for line := range strings.Lines(operatorPage(t, heading)) {
		if rest, found := strings.CutPrefix(line, "ACL SETUSER "); found {
			fields := strings.Fields(rest)
			return aclLine{fields[0], fields[1:]}
		}
	}
	t.Fatalf("no ACL SETUSER below %q", heading)
	return aclLine{}
}

func (l aclLine) with(more aclLine) aclLine {
	return aclLine{l.user, slices.Concat(l.rules, more.rules)}
}

// withPrefix returns the line for a KeyPrefix, made as the page says.
func (l aclLine) withPrefix(prefix string) aclLine {
	rules := slices.Clone(l.rules)
	for i, rule := range rules {
		if strings.ContainsAny(rule[:1], "~&") {
			rules[i] = rule[:1] + prefix + rule[1:]
		}
	}
	return aclLine{l.user, rules}
}

const aclPassword = "secret"

func (l aclLine) args() []any {
	args := []any{"ACL", "SETUSER", l.user}
	for _, rule := range l.rules {
		if rule == ">PASSWORD" {
			rule = ">" + aclPassword
		}
		args = append(args, rule)
	}
	return args
}
