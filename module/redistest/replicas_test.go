package redistest

import (
	"slices"
	"testing"
	"time"
)

// expectReplicated writes to the master and reads from the replicas, which are
// all to have the value soon.
func expectReplicated(t *testing.T, servers *ReplicatedServers, value string) {
	t.Helper()
	replicas := servers.Replicas()
	conn := servers.Master().Client(t).Conn()
	defer conn.Close()
	expectAnswer(t, conn, "OK", "set", "key", value)
	if got, err := conn.Wait(testContext(t), len(replicas), 5*time.Second).Result(); err != nil || int(got) != len(replicas) {
		t.Errorf("%d of %d replicas have the value, %v", got, len(replicas), err)
	}
	for _, replica := range replicas {
		expectAnswer(t, replica.Client(t), value, "get", "key")
		expectAnswer(t, replica.Client(t), "READONLY", "set", "key", "other")
	}
}

func TestPromotion(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	servers := Replicated(t, 2, "--requirepass", "secret")
	all := servers.Servers()
	if servers.Master() != all[0] || !slices.Equal(servers.Replicas(), all[1:]) {
		t.Errorf("of the servers %v the master is %v", all, servers.Master())
	}
	expectReplicated(t, servers, "first")

	expectNoError(t, servers.Promote(ctx, all[1]))
	if servers.Master() != all[1] {
		t.Errorf("the master is %s, want %s", servers.Master().Addr(), all[1].Addr())
	}
	expectReplicated(t, servers, "second")

	all[1].Stop()
	expectError(t, servers.Promote(ctx, all[1]), "stopped")
	expectNoError(t, servers.Promote(ctx, all[2]))
	expectAnswer(t, all[2].Client(t), "second", "get", "key")
	all[1].Start()
	expectNoError(t, servers.Promote(ctx, all[2]))
	expectReplicated(t, servers, "third")
	expectError(t, servers.Promote(ctx, Single(t)), "none of these")
}
