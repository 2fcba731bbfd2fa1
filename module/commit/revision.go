package commit

import (
	"math/rand/v2"
	"time"

	"github.com/pushfx/pushfx/module/stored"
)

// maxStep is by how much a version grows at most if the clock is behind it, in
// microseconds. It is random, so that changes which the store has lost do not
// share their versions with those that come instead.
const maxStep = 1000

// versionAfter returns the version of a change at a time onto a revision.
func versionAfter(r stored.Revision, now time.Time) int64 {
	if version := now.UnixMicro(); version > r.Version {
		return version
	}
	return r.Version + 1 + rand.Int64N(maxStep)
}
