package rediscommit

import (
	"fmt"
	"slices"
	"testing"
)

func TestMastersAreReadFromTheNodesOfACluster(t *testing.T) {
	t.Parallel()
	const nodes = `a1 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 [93-<-b1]
a2 127.0.0.1:7001@17001 slave a1 0 0 1 connected
b1 127.0.0.1:7002@17002,host-b master - 0 0 2 connected 5461
c1 ::1:7003@17003,,shard-id=x master,fail - 0 0 3 disconnected 5462-16383
d1 127.0.0.1:7004@17004 master,fail - 0 0 4 disconnected
e1 127.0.0.1:7005@17005 master,fail? - 0 0 5 connected
f1 127.0.0.1:7006@17006 master - 0 0 0 connected
g1 :0@0 master,noaddr - 0 0 6 disconnected
h1 127.0.0.1:7007@17007 handshake - 0 0 0 connected
i1 127.0.0.1:7008@17008 master,fail - 0 0 7 disconnected [93->-a1]
`
	var got []string
	for _, m := range readMasters(nodes) {
		got = append(got, fmt.Sprint(m.id, m.addresses, m.isReplaced))
	}
	want := []string{
		"a1[127.0.0.1:7000] false", "b1[host-b:7002 127.0.0.1:7002] false", "c1[[::1]:7003] false", "d1[127.0.0.1:7004] true",
		"e1[127.0.0.1:7005] false", "f1[127.0.0.1:7006] false", "i1[127.0.0.1:7008] true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if masters := readMasters("no answer\n\n"); len(masters) != 0 {
		t.Errorf("got %v", masters)
	}
}
