package delivery

import (
	"context"
	"time"

	"github.com/pushfx/pushfx/module"
)

const (
	// announcedFor is how long an announcement lasts, unless it is repeated.
	announcedFor  = time.Minute
	announceAgain = announcedFor / 3

	// announceLater is how much later the end of a wait has to be to be announced.
	announceLater = time.Second

	// longestAnnounced is how many bytes the name of a gateway may have: more than
	// that of any host on the Internet.
	longestAnnounced = 300

	// answersNow is for how long after an answer a host goes on with a gateway that
	// another one cannot reach.
	answersNow = 2 * time.Second
)

// shared is what hosts announce to each other of gateways.
type shared struct {
	known   map[string]module.SharedGateway // those that are not open, as of the last exchange
	changes map[string]module.GatewayChange // announcements that were not made yet
	running bool                            // an exchange is under way
}

// exchange makes the announcements of this host, and takes in those of the others:
// one exchange at a time, so that each answer is of after the announcements before.
func (s *sender) exchange() {
	if s.shared.running {
		return
	}
	changes := s.shared.changes
	s.shared.running, s.shared.changes = true, map[string]module.GatewayChange{}
	s.bounded(func(ctx context.Context) func() {
		known, err := s.queue.ShareGateways(ctx, changes, announcedFor)
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

// add adds an announcement, in the place of one that was not made yet. But that an
// operator has asked for a retry is announced, whatever comes of it meanwhile.
func (sh *shared) add(name string, change module.GatewayChange) {
	pending, found := sh.changes[name]
	if found && change.State == "" {
		return
	}
	change.Retry = change.Retry || pending.Retry
	sh.changes[name] = change
}

// announced is what the other hosts know of a gateway from this one, or it from them.
type announced struct {
	state GateState // GateOpen, too, while it ramps
	until time.Time
	at    time.Time
}

// announceState announces that a gateway has closed or opened here, and from time to
// time that it is still closed.
func (s *sender) announceState(g *gateway, now time.Time) {
	last, change := g.announced, module.GatewayChange{Status: g.status}
	switch {
	case g.state == GateHeld, !g.isClosed() && last.state == GateOpen, len(g.name) > longestAnnounced:
		return
	case !g.isClosed():
		change.State = module.GatewayOpen
	case g.state == GateWaiting && (last.state != GateWaiting || g.until.Sub(last.until) > announceLater):
		change.State, change.Wait = module.GatewayWaiting, g.until.Sub(now)
	case g.state == GateProbing && last.state != GateProbing:
		change.State = module.GatewayClosed
	case now.Sub(last.at) < announceAgain:
		return
	}
	s.announce(g, change, now)
}

// announce announces a change, at once if it is more than that it lasts.
func (s *sender) announce(g *gateway, change module.GatewayChange, now time.Time) {
	g.announced = announced{state: g.state, until: g.until, at: now}
	if !g.isClosed() {
		g.announced.state = GateOpen
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
		} else if g.knownClosed {
			g.knownClosed = false
			if g.isClosed() {
				g.ramp(now)
				g.announced.state = GateOpen
				s.opened(g, now)
				s.activate(g)
			}
		}
	}
}

// heed closes a gateway that another host, or an operator, has closed. One that
// only fails elsewhere goes on as long as it answers here.
func (s *sender) heed(g *gateway, t module.SharedGateway, now time.Time) {
	g.knownClosed = true
	until := t.Until.Add(-s.ahead())
	switch {
	case t.State == module.GatewayHeld:
		if g.state == GateHeld {
			return
		}
		g.enter(GateHeld, now)
	case t.State == module.GatewayWaiting && until.After(now):
		if g.state == GateWaiting && until.Sub(g.until) < announceLater {
			return
		}
		g.enter(GateWaiting, now)
		g.until = until
	case t.State == module.GatewayClosed && g.state != GateProbing && now.Sub(g.aliveAt) > answersNow:
		g.probe(now, now)
	default:
		return
	}
	g.announced = announced{g.state, g.until, now}
	s.closed(g)
	s.activate(g)
}
