package match

// maxWork bounds the cost of one user's rules on one event. A unit is the comparison of
// one byte of a text with up to 64 bytes of a pattern, two to four nanoseconds. On a body
// of 64 KB, the largest, maxWork suffices for 32 searches for a fixed text, for 16 scans
// for patterns, or for one scan for a pattern of 1,000 bytes without a star. On a body of
// 1 KB it suffices for 64 times as many.
const maxWork = 1 << 20

// explainWork bounds the cost of an explanation, which tests every rule.
const explainWork = 16 * maxWork

// The costs of single steps, in units of work.
const (
	conditionWork   = 16 // testing a condition
	nameWork        = 8  // looking up a name of its key
	searchedPerUnit = 2  // bytes that are searched for a fixed text
	comparedPerUnit = 8  // bytes that are compared with a fixed text
	filterWork      = 1  // looking up a word or a gram in a filter
	placeWork       = 16 // looking up a word or a gram that the filter has
	tryWork         = 16 // testing whether a short segment matches at a place
	longScanWork    = 2  // reading a byte in a scan for a long segment
	wordsPerUnit    = 2  // words of the state that this computes
	memberWork      = 8  // taking a result that members share
	setupWork       = 96 // making the tables of a scan, for each 64 bytes of the segment
)

// meter counts the remaining work of an evaluation.
type meter struct {
	left      int
	exhausted bool // whether a search ended early because no work was left
}

// spend takes units of work.
func (m *meter) spend(units int) { m.left -= units }

// isEmpty reports whether no work is left. The caller must then stop.
func (m *meter) isEmpty() bool {
	if m.left <= 0 {
		m.exhausted = true
		return true
	}
	return false
}
