package match

// maxWork bounds what the rules of one user may cost on one event. A unit is
// about what it takes to compare one byte of a text with up to 64 bytes of a
// pattern, some two nanoseconds. On a body of 64 KB, the largest there is, it
// suffices for 128 searches for a fixed text, for 32 scans for patterns that
// need one, and for two if these have 1,000 bytes without a star. On a body of
// 1 KB it suffices for 64 times as many.
const maxWork = 2 << 20

// explainWork bounds what an explanation costs, which tests every rule.
const explainWork = 16 * maxWork

// The costs of single steps, in units of work.
const (
	conditionWork   = 8  // testing a condition
	searchedPerUnit = 4  // bytes that are searched for a fixed text
	tryWork         = 16 // testing whether a short segment matches at a place
	memberWork      = 8  // taking a result that members share
	setupWork       = 64 // making the tables of a scan, for each 64 bytes of the segment
)

// meter counts the work that an evaluation may still do.
type meter struct {
	left      int
	exhausted bool // whether something was not done for want of it
}

// spend takes units of work.
func (m *meter) spend(units int) { m.left -= units }

// isEmpty reports whether there is no work left, so that what is asked for is
// not done.
func (m *meter) isEmpty() bool {
	if m.left <= 0 {
		m.exhausted = true
		return true
	}
	return false
}
