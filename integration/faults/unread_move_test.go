package faults

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/redisclient"
	"github.com/pushfx/pushfx/module/redistest"
	"github.com/pushfx/pushfx/module/stored"
	"github.com/pushfx/pushfx/module/unread"
)

// unreadMove is a cluster with a slot of two users, "moved" and "stayed". The list of the former is on a master that
// does not serve the slot, as after an interrupted move of it; the latter has none.
type unreadMove struct {
	cluster       *redistest.ClusterServers
	slot          int
	owner, target *redistest.Server
	moved, stayed mxid.UserID
	hosts         [2]*unread.Service
}

const movedRoom = "!room:x"

func newUnreadMove(t *testing.T) *unreadMove {
	t.Helper()
	redistest.Require(t)
	cluster := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	m := &unreadMove{cluster: cluster, moved: "@moved:x"}
	m.slot = redisclient.SlotOf(stored.Keys{}.Unread(m.moved))
	for i := 0; m.stayed == ""; i++ {
		if user := mxid.UserID(fmt.Sprintf("@user%d:x", i)); redisclient.SlotOf(stored.Keys{}.Unread(user)) == m.slot {
			m.stayed = user
		}
	}
	m.newHosts(t)
	var err error
	if m.owner, err = cluster.MasterOf(t.Context(), m.slot); err == nil {
		m.target, err = hosttest.OtherMaster(t.Context(), cluster, m.slot)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newHosts replaces the hosts by new ones, which know nothing of the cluster.
func (m *unreadMove) newHosts(t *testing.T) {
	t.Helper()
	m.hosts = [2]*unread.Service{newUnread(t, m.cluster.Client(t)), newUnread(t, m.cluster.Client(t))}
}

// begin begins to move the slot, with the keys of users.
func (m *unreadMove) begin(t *testing.T, users ...mxid.UserID) *redistest.SlotMove {
	t.Helper()
	move, err := m.cluster.BeginMove(t.Context(), m.slot, m.target)
	for _, user := range users {
		if err == nil {
			err = move.MoveKeys(t.Context(), stored.Keys{}.Unread(user))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return move
}

// interrupt makes both masters forget the move, as their replicas would. The hosts are new, because they would know
// that the masters are others.
func (m *unreadMove) interrupt(t *testing.T) {
	t.Helper()
	for _, server := range []*redistest.Server{m.owner, m.target} {
		if err := server.Client(t).Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, "STABLE").Err(); err != nil {
			t.Fatal(err)
		}
	}
	m.newHosts(t)
}

func (m *unreadMove) add(t *testing.T, host int, position int64, users ...mxid.UserID) {
	t.Helper()
	var decisions module.Decisions
	for _, user := range users {
		decisions = append(decisions, notifying(t, user))
	}
	if err := hosttest.Persist(func() error {
		return m.hosts[host].Add(t.Context(), module.Place{Room: movedRoom, Position: position, Thread: module.MainThread}, decisions)
	}); err != nil {
		t.Errorf("Add at %d: %s", position, fault.Details(err))
	}
}

func (m *unreadMove) wantCount(t *testing.T, user mxid.UserID, want int) {
	t.Helper()
	for i, host := range m.hosts {
		var counts map[string]module.RoomCounts
		err := hosttest.Persist(func() (err error) {
			counts, err = host.Rooms(t.Context(), user, movedRoom)
			return err
		})
		if got := counts[movedRoom].Main.Notifications; err != nil || got != want {
			t.Errorf("host %d: %s has %d unread notifications, want %d, error %v", i, user, got, want, err)
		}
	}
}

// stateOf asks for the states of both users and returns that of one.
func (m *unreadMove) stateOf(t *testing.T, host *unread.Service, user mxid.UserID) (state module.Result[module.UnreadState]) {
	t.Helper()
	events := []module.UserEvent{{User: m.stayed}, {User: m.moved}}
	_ = hosttest.Persist(func() error {
		state = host.States(t.Context(), events)[slices.Index(events, module.UserEvent{User: user})]
		return state.Err
	})
	return state
}

// A list that an interrupted move has left on another master is unreadable, not empty, and no new list hides it.
func TestAnInterruptedMoveLosesNoUnreadCounts(t *testing.T) {
	t.Parallel()
	m := newUnreadMove(t)
	m.add(t, 0, 1, m.moved)
	m.add(t, 0, 2, m.moved)
	m.begin(t, m.moved)
	m.interrupt(t)
	for _, host := range m.hosts {
		for call, do := range map[string]func() error{
			"Rooms": func() error {
				_, err := host.Rooms(t.Context(), m.moved)
				return err
			},
			"List": func() error {
				_, err := host.List(t.Context(), m.moved, module.UnreadQuery{})
				return err
			},
			"States": func() error { return m.stateOf(t, host, m.moved).Err },
			"Read":   func() error { return host.Read(t.Context(), m.moved, movedRoom, module.AllThreads, 1) },
		} {
			if err := hosttest.Persist(do); fault.KindOf(err) != fault.Database || !strings.Contains(fault.Details(err), "another master has the key") {
				t.Errorf("%s: got error %s", call, fault.Details(err))
			}
		}
		if err := m.stateOf(t, host, m.stayed).Err; err != nil {
			t.Errorf("States of the other user: %s", fault.Details(err))
		}
	}
	m.add(t, 1, 3, m.stayed, m.moved) // the event skips the latter
	m.wantCount(t, m.stayed, 1)
	if n := m.owner.Client(t).Exists(t.Context(), stored.Keys{}.Unread(m.moved)).Val(); n != 0 {
		t.Fatal("a new list hides the older one")
	}
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip("there is no redis-cli")
	}
	if err := m.cluster.Fix(t.Context(), m.slot); err != nil {
		t.Fatal(err)
	}
	m.wantCount(t, m.moved, 2)
	m.wantCount(t, m.stayed, 1)
}

// A compaction must not remove the whole list before it stores the record: Redis would refuse to create the key again
// while its slot moves.
func TestUnreadListsAreCompactedWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	m := newUnreadMove(t)
	for position := range int64(unread.MaxOps) {
		m.add(t, 0, position+1, m.moved, m.stayed)
	}
	move := m.begin(t, m.moved)
	for position := range int64(100) {
		m.add(t, int(position%2), 65+position, m.moved, m.stayed)
	}
	m.wantCount(t, m.moved, 164)
	m.wantCount(t, m.stayed, 164)
	if err := move.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.wantCount(t, m.moved, 164)
	m.wantCount(t, m.stayed, 164)
}
