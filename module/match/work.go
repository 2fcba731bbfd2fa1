package match

// maxWork bounds the cost of one user's rules on one event. A unit takes two to four
// nanoseconds: it compares one byte of a text with up to 64 bytes of a pattern.
// README.md tells how many searches this allows.
const maxWork = 1 << 20

const explainWork = 16 * maxWork

// The costs of single steps, in units of work.
const (
	conditionWork   = 16 // testing a condition
	nameWork        = 8  // looking up a name of the key
	searchedPerUnit = 2  // bytes searched for a fixed text
	comparedPerUnit = 8  // bytes compared with a fixed text
	filterWork      = 1  // looking up a word or a gram in a filter
	placeWork       = 16 // looking up a word or a gram after the filter
	tryWork         = 16 // testing whether a short segment matches at a place
	longScanWork    = 2  // reading a byte in a scan for a long segment
	wordsPerUnit    = 2  // words of the state that a unit computes
	memberWork      = 8  // reusing a shared result
	setupWork       = 96 // making the tables of a scan, for each 64 bytes of the segment
)

type meter struct {
	left      int
	exhausted bool // whether a search ended early because no work was left
}

func (m *meter) spend(units int) { m.left -= units }

// isEmpty reports whether no work is left; if so, the caller must stop.
func (m *meter) isEmpty() bool {
	if m.left <= 0 {
		m.exhausted = true
		return true
	}
	return false
}
