// Package api tests that hosts keep the contract of the push rules and pushers API.
package api

import (
	"os"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Run(m)) }
