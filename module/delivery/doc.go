// Package delivery brings notifications of new events to push gateways. The host
// calls [Delivery.Decide] and [Delivery.Notify]; what Notify has taken is in the
// logs of a [module.DeliveryQueue], over whose shards the hosts share themselves,
// and is sent by whichever of them lives.
//
// # How a notification goes
//
// An event becomes an entry in the log of each shard that has users to notify.
// The shard's owner, the host that holds its lease, reads the entries in their
// order and puts each into the queue of each pusher of each user: one is sent at
// a time. When nothing is left to do for an entry, a checkpoint drops it from the
// log. Checkpoints of all shards are made together, every
// 20 ms as long as there is something new, and sooner when much is. Pushers
// without trouble leave nothing behind, in the queue or in memory.
//
// A pusher in trouble has a record in the queue, with the newest of its
// notifications. These are moved from the log to the record in one checkpoint, so
// that the log is as long as what is under way, whatever gateways do.
//
// # A pusher's states
//
//	state    event                                     next     does
//	idle     an entry is read                          ready
//	ready    its gateway takes a request               sending  reads the pusher, if that was more than a second ago
//	ready    the user looks elsewhere                  waiting  as the host says, 5 min at most; a call ends it
//	sending  gone, disabled, or of another kind        idle     drops all
//	sending  the user has read the event               ready    drops it
//	sending  200 with a JSON object                    ready    it is finished
//	sending  200 that rejects the pushkey              waiting  drops all; removes the pusher some seconds later
//	sending  400, 413, 422                             ready    sends it as event_id_only, then drops it
//	sending  429 or 503 with Retry-After               waiting  until then, 1 s to 1 h
//	sending  429 that names no time                    waiting  backs off, 1 s doubling to 10 min
//	sending  507                                       waiting  backs off, 1 s doubling to 10 min; the gateway is well
//	sending  the address is refused                    waiting  1 h
//	sending  any other answer, or none                 waiting  backs off, 1 s doubling to 16 s, a random part of it
//	waiting  the time is over                          ready
//	sending  the 8th failure, others are delivered     ready    sends it as event_id_only, then drops it
//	sending  the 8th 5xx but 503, none is delivered    ready    sends the next one, and if that is delivered the first as
//	                                                            event_id_only, then drops it
//	waiting  more arrives                              waiting  keeps 100 for half a minute, then the newest 10, of a room 3
//	any      it was set anew                           ready
//	any      the shard is lost                         -        all is forgotten; the next owner has the log and the records
//
// A notification that is never taken stops no pusher: others that are taken show
// that it is not the gateway that fails, those of other pushers or, where none is
// sent any, the pusher's next. If the gateway has recovered at that very time, the
// next one comes before the first. Where one event is for many pushers, what one of
// them shows counts for all: once it is known to be the event that fails, from
// whichever pushers, the first failure of each has its next one tried, and closes
// the gateway no more. So what else a thousand pushers are to be sent comes within
// a minute, or within three if the gateway answers 503.
//
// A gateway of one or two pushers does not close, for their failures may be their
// own. That they wait no longer than 16 s has them served within 20 s of the end
// of any outage. A host tries no more than about 100 of them in a second, beside
// the first times of each, so that many gateways that are gone for ever cost
// little: where more than 800 pushers wait so, their waits grow, for 8,000 to
// 160 s.
//
// # A gateway's states
//
// A gateway is a URL's scheme, host and port. Each host has its own view of it,
// and shares with the others when it closes and opens:
//
//	state    event                                       next     does
//	open     answers                                     open     one more request at a time for each round, up to 64
//	open     429, 502, 503, 504, or no answer in time    open     half as many, at least 4, once a second
//	open     10 failures in a row, of 3 pushers          probing
//	open     3 pushers get a Retry-After in 10 s         waiting
//	waiting  the time is over                            probing
//	probing  1 s, 2 s, 4 s, then every 5 s               probing  sends one notification, of the pusher that came last
//	                                                              with another event than those that have just failed
//	probing  it is answered                              ramping  all pushers that wait for the gateway are ready;
//	                                                              what has hung for 5 s is cut off and sent again
//	ramping  a second is over                            ramping  twice as many requests a second
//	ramping  3 failures in a row, or one 429             probing
//	ramping  10 s are over                               open
//	any      another host announces that it waits        waiting  for as long
//	open     it is closed elsewhere, and has not         probing
//	         answered here for 2 s
//	closed   it has answered at another host             ramping
//	any      an operator holds it                        held     sends nothing
//	held     the operator opens it                       ramping
//
// Beside its state, a gateway is untried, responsive or slow: that decides with
// which others it shares the host's requests.
//
//	class       event                                     next        shares with its class
//	untried     a request ends within 5 s                 responsive  a quarter of Config.MaxInFlight; who came last is next
//	untried     half of its requests hang, for 5 s        slow
//	responsive  half of its requests hang, for 5 s        slow        Config.MaxInFlight
//	slow        a request ends within 5 s                 responsive  twice Config.MaxInFlight, apart
//
// A request that has been under way for a second is counted apart from
// Config.MaxInFlight, too. So those that hang, however many they are, keep a new
// gateway waiting for two seconds at most, and one that answers not at all; but
// where hundreds that were responsive begin to hang at once, others wait until they
// are counted apart.
//
// What fails while a gateway is closed, which is waiting, probing or held, costs
// its pushers no attempts.
//
// A host announces at once what it has seen, and asks every second for what others
// have. Each that has something to send to a closed gateway probes it for itself,
// which is a request in 5 s of each: so a host that cannot reach it keeps no other
// from it. An announcement is repeated every 20 s, and lapses a minute after the
// host has died.
//
// # Operators
//
// What operators want done with pushers in trouble, an [Instruction], goes through
// the queue to the owner of the shard, with its next lease. The owner answers in
// the checkpoint that has what was done. Nobody else changes its records. What is to
// be dropped of the log, though it is not read yet, is kept with what is finished,
// for the next owners too.
package delivery
