package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/pushfx/pushfx/module"
)

func gatewaysShared(t *testing.T, newQueue hosts, _ int) {
	q, other := newQueue(t), newQueue(t)
	failing, waiting := "https://"+unique()+":443", "https://"+unique()+":8443"
	share := func(q module.DeliveryQueue, lasts time.Duration, name string, change module.GatewayChange) (known map[string]module.SharedGateway) {
		t.Helper()
		persist(t.Context(), t, func() (err error) {
			known, err = q.ShareGateways(t.Context(), map[string]module.GatewayChange{name: change}, lasts)
			return err
		})
		return known
	}
	want := func(what string, known map[string]module.SharedGateway, name string, state module.GatewayState, status int) (g module.SharedGateway) {
		t.Helper()
		g, found := known[name]
		if found != (state != module.GatewayOpen) || found && (g.State != state || g.Status != status) {
			t.Errorf("%s: got %+v, %t, want %q and %d", what, g, found, state, status)
		}
		return g
	}
	open, renew := module.GatewayChange{State: module.GatewayOpen}, module.GatewayChange{}
	closed := module.GatewayChange{State: module.GatewayClosed, Status: 502}
	waits := module.GatewayChange{State: module.GatewayWaiting, Wait: long, Status: 429}

	want("what is not known is not renewed", share(q, long, failing, renew), failing, module.GatewayOpen, 0)
	first := want("closed", share(q, long, failing, closed), failing, module.GatewayClosed, 502)
	seen := want("closed, at another host", share(other, long, waiting, renew), failing, module.GatewayClosed, 502)
	if !seen.Since.Equal(first.Since) || first.Since.IsZero() || !first.Until.IsZero() {
		t.Errorf("got %+v, and another host %+v", first, seen)
	}
	want("renewed", share(other, long, failing, renew), failing, module.GatewayClosed, 502)
	again := want("closed again", share(other, long, failing, module.GatewayChange{State: module.GatewayClosed}), failing, module.GatewayClosed, 0)
	if !again.Since.Equal(first.Since) {
		t.Errorf("it is closed since %v, then since %v", first.Since, again.Since)
	}
	want("open", share(other, long, failing, open), failing, module.GatewayOpen, 0)
	want("open, at another host", share(q, long, failing, renew), failing, module.GatewayOpen, 0)

	g := want("waiting", share(q, long, waiting, waits), waiting, module.GatewayWaiting, 429)
	if left := g.Until.Sub(g.Since); left < long-patience/2 || left > long+patience/2 {
		t.Errorf("it waits for %v", left)
	}
	shorter := waits
	shorter.Wait = time.Second
	want("the later time holds", share(other, long, waiting, shorter), waiting, module.GatewayWaiting, 429)
	if got := share(other, long, waiting, closed)[waiting]; got != g {
		t.Errorf("a host that fails meanwhile changes %+v to %+v", g, got)
	}
	if got := share(other, long, waiting, open)[waiting]; got != g {
		t.Errorf("a host that was answered meanwhile changes %+v to %+v", g, got)
	}

	want("opened", share(other, long, waiting, module.GatewayChange{State: module.GatewayOpen, Retry: true}), waiting, module.GatewayOpen, 0)
	share(q, long, waiting, waits)
	want("retried", share(other, long, waiting, module.GatewayChange{State: module.GatewayClosed, Retry: true}), waiting, module.GatewayClosed, 0)

	share(q, short, failing, closed)
	for deadline := time.Now().Add(patience); share(other, long, waiting, renew)[failing].State != ""; {
		if time.Now().After(deadline) {
			t.Fatal("what a host has told stays when it is gone")
		}
	}
	name := strings.Repeat("x", 1000) + " \x00\xff"
	want("an odd name", share(q, short, name, closed), name, module.GatewayClosed, 502)
}
