package delivery

import (
	"fmt"
	"strings"
	"time"
)

// table is what was found.
type table struct{ rows []row }

// row is one thing that was measured.
type row struct{ what, found, beside, ratio, goal string }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

func (t *table) markdown(p plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %d rounds of %d notifications, an outage of %v.\n\n", machine(), p.rounds, p.notifications, p.outage)
	b.WriteString("| What | delivery | beside | ratio | goal |\n|---|---|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.what, r.found, r.beside, r.ratio, r.goal)
	}
	return b.String()
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1e3) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Nanoseconds())/1e6) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

func times(ratio float64) string { return fmt.Sprintf("%.2f", ratio) }

func by[T ~int64](a, b T) float64 { return float64(a) / float64(b) }
