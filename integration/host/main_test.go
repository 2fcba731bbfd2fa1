// Package host tests what a host gets that includes the module: its seams, delivery, mail, metrics and traces.
package host

import (
	"os"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Run(m)) }
