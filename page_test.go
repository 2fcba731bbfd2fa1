package pushfx_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redisclient"
)

func TestTheClientsOfThePagesGetNoAdvice(t *testing.T) {
	t.Parallel()
	for page, client := range map[string]redis.UniversalClient{"README.md": newRedis(), "module/README.md": newCluster()} {
		defer client.Close()
		if advice := redisclient.Advise(client); len(advice) != 0 {
			t.Errorf("%s: %v", page, advice)
		}
	}
}
