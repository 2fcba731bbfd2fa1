package delivery

import (
	"slices"
	"strings"
	"time"

	"github.com/pushfx/pushfx/module/mxid"
)

// flush is what an operator wants dropped of the log. It is remembered, by the next
// owners too, until all that was handed over before it is read.
type flush struct {
	user    mxid.UserID // empty for all
	gateway string      // as [IsGateway] has it; empty for all
	before  time.Time   // only what was handed over before, by the clock of the queue
}

// isFor reports whether it is for the pusher of a user. D is nil if that is not
// known.
func (fl flush) isFor(user mxid.UserID, d *device) bool {
	return (fl.user == "" || fl.user == user) && (fl.gateway == "" || d != nil && IsGateway(d.gateway, fl.gateway))
}

// IsGateway reports whether a push gateway, as [GatewayOf] has it, is the one that
// an operator names: by its host, with or without port and scheme.
func IsGateway(gateway, name string) bool {
	name = strings.ToLower(name)
	_, host, _ := strings.Cut(gateway, "://")
	return name != "" && (gateway == name || host == name || host[:max(0, strings.LastIndexByte(host, ':'))] == name)
}

// flushLog drops what waits of the log, at once what was read of it, and the rest
// when it is.
func (sh *shard) flushLog(in Instruction) (e Effect) {
	fl := flush{in.User, in.Gateway, in.Before}
	e.Behind = sh.more || sh.reading || sh.expanded < len(sh.entries)
	for _, u := range sh.users {
		e.Behind = e.Behind || len(u.arrived) > 0 && (fl.user == "" || fl.user == u.id)
		for _, f := range slices.Clone(u.fifos) { // some may be forgotten
			if !fl.isFor(u.id, u.device(f.id)) {
				continue
			}
			if dropped := f.flush(fl.before); dropped > 0 {
				e.Pushers++
				e.Notifications += dropped
			}
		}
	}
	if e.Behind {
		includes := func(o flush) bool { return o.user == fl.user && o.gateway == fl.gateway && !o.before.After(fl.before) }
		sh.flushes = append(slices.DeleteFunc(sh.flushes, includes), fl)
		sh.partly = true
	}
	return e
}

// isFlushed reports whether a notification out of the log is to be dropped.
func (sh *shard) isFlushed(n *notification, user mxid.UserID, d *device) bool {
	return slices.ContainsFunc(sh.flushes, func(fl flush) bool { return n.added.Before(fl.before) && fl.isFor(user, d) })
}

// endFlushes forgets those that nothing comes for any more.
func (sh *shard) endFlushes() {
	before := len(sh.flushes)
	sh.flushes = slices.DeleteFunc(sh.flushes, func(fl flush) bool {
		if len(sh.entries) > 0 {
			return !sh.entries[0].added.Before(fl.before)
		}
		return !sh.more && !sh.reading
	})
	sh.partly = sh.partly || len(sh.flushes) < before
}

func appendFlushes(dst []byte, flushes []flush) []byte {
	dst = appendNumber(dst, int64(len(flushes)))
	for _, fl := range flushes {
		dst = appendTime(appendText(appendText(dst, string(fl.user)), fl.gateway), fl.before)
	}
	return dst
}

func (r *wireReader) flushes() []flush {
	flushes := make([]flush, r.count())
	for i := range flushes {
		flushes[i] = flush{user: mxid.UserID(r.own()), gateway: r.own(), before: r.time()}
	}
	return flushes
}
