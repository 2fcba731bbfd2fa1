package rediscommit

import (
	"testing"
	"testing/synctest"
	"time"
)

// However often a write was redirected, it is sent again soon.
func TestThePauseBeforeARedirectedWriteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for try := range 200 {
			if began := time.Now(); !pauseBefore(t.Context(), try) || time.Since(began) > 100*time.Millisecond {
				t.Errorf("try %d: a pause of %v", try, time.Since(began))
			}
		}
	})
}
