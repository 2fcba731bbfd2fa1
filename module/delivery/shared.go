package delivery

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
)

const (
	// sharedFor is how long the other hosts know of a gateway that this one has told
	// them not to be open, unless it is told again.
	sharedFor   = time.Minute
	shareAgain  = sharedFor / 3
	toldExactly = time.Second // how much later a time has to be to be told

	// longestShared is how many bytes a name that is told may have: more than the
	// name of any host on the Internet.
	longestShared = 300

	// answersNow is for how long after an answer a host goes on with a gateway that
	// another one cannot reach.
	answersNow = 2 * time.Second
)

// shared is what hosts tell each other of gateways.
type shared struct {
	known   map[string]module.SharedGateway // as of the last exchange
	changes map[string]module.GatewayChange // that are to be told
	running bool
}

// exchange tells the other hosts what has changed, and takes in what they tell:
// one exchange at a time, so that each answer is of after what was told before.
func (s *sender) exchange() {
	if s.shared.running {
		return
	}
	changes := s.shared.changes
	s.shared.running, s.shared.changes = true, map[string]module.GatewayChange{}
	s.bounded(func(ctx context.Context) func() {
		known, err := s.queue.ShareGateways(ctx, changes, sharedFor)
		return func() {
			s.shared.running = false
			if err != nil {
				s.failed("share gateways", err)
				newer := s.shared.changes
				s.shared.changes = changes // with the next pulse
				for name, change := range newer {
					s.shared.add(name, change)
				}
				return
			}
			s.heedAll(known)
			if len(s.shared.changes) > 0 {
				s.exchange()
			}
		}
	})
}

// add has a change told, in the place of one that was not told yet. What an
// operator has asked for is told with what comes of it.
func (sh *shared) add(name string, change module.GatewayChange) {
	pending, found := sh.changes[name]
	if found && change.State == "" {
		return
	}
	change.Retry = change.Retry || pending.Retry
	sh.changes[name] = change
}

// told is what the other hosts have been told of a gateway.
type told struct {
	state GateState // GateOpen, too, while it ramps
	until time.Time
	at    time.Time
}

// tell has the other hosts told of a gateway that has closed or opened here.
func (s *sender) tell(g *gateway, now time.Time) {
	last, change := g.told, module.GatewayChange{Status: g.status}
	switch {
	case g.state == GateHeld, !g.isClosed() && last.state == GateOpen, len(g.name) > longestShared:
		return
	case !g.isClosed():
		change.State = module.GatewayOpen
	case g.state == GateWaiting && (last.state != GateWaiting || g.until.Sub(last.until) > toldExactly):
		change.State, change.Wait = module.GatewayWaiting, g.until.Sub(now)
	case g.state == GateProbing && last.state != GateProbing:
		change.State = module.GatewayClosed
	case now.Sub(last.at) < shareAgain:
		return
	}
	s.change(g, change, now)
}

// change tells it, at once if it is more than that it lasts.
func (s *sender) change(g *gateway, change module.GatewayChange, now time.Time) {
	g.told = told{state: g.state, until: g.until, at: now}
	if !g.isClosed() {
		g.told.state = GateOpen
	}
	s.shared.add(g.name, change)
	if change.State != "" {
		s.exchange()
	}
}

// heedAll takes in what all hosts know. A gateway that they knew not to be open,
// and do not any more, was opened by one of them or by an operator.
func (s *sender) heedAll(known map[string]module.SharedGateway) {
	s.shared.known = known
	now := time.Now()
	for name, g := range s.gateways {
		if _, isNewer := s.shared.changes[name]; isNewer {
			continue
		}
		if t, found := known[name]; found {
			s.heed(g, t, now)
		} else if g.known {
			g.known = false
			if g.isClosed() {
				g.ramp(now)
				g.told.state = GateOpen
				s.opened(g, now)
				s.activate(g)
			}
		}
	}
}

// heed closes a gateway that another host, or an operator, has closed. One that
// only fails elsewhere goes on as long as it answers here.
func (s *sender) heed(g *gateway, t module.SharedGateway, now time.Time) {
	g.known = true
	until := t.Until.Add(-s.ahead())
	switch {
	case t.State == module.GatewayHeld:
		if g.state == GateHeld {
			return
		}
		g.enter(GateHeld, now)
	case t.State == module.GatewayWaiting && until.After(now):
		if g.state == GateWaiting && until.Sub(g.until) < toldExactly {
			return
		}
		g.enter(GateWaiting, now)
		g.until = until
	case t.State == module.GatewayClosed && g.state != GateProbing && now.Sub(g.aliveAt) > answersNow:
		g.probe(now, now)
	default:
		return
	}
	g.told = told{g.state, g.until, now}
	s.closed(g)
	s.activate(g)
}
