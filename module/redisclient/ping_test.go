package redisclient

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/redistest"
)

func TestAClusterThatIsNotCreatedYetIsToldAsThat(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--cluster-enabled", "yes")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := Ping(ctx, client)
	if err == nil || !strings.Contains(err.Error(), "is not created yet") || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
}
