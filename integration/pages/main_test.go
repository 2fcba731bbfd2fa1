// Package pages tests that what the pages say is so.
package pages

import (
	"os"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

// TestMain changes to the folder of which the paths in these tests are.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(hosttest.Run(m))
}
