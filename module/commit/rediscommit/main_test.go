package rediscommit

import (
	"os"
	"testing"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.RunSideBySide(m)) }
