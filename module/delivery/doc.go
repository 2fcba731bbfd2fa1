// Package delivery brings notifications of new events to push gateways. The host
// calls [Delivery.Decide] and [Delivery.Notify]; what Notify has taken waits in the
// backlogs of a [module.DeliveryQueue], and is sent by whichever host lives.
//
// # Where to find what
//
//	notify.go    an event becomes a notification for each pusher, in its backlog
//	fanout.go    a large event does so in parts
//	look.go      a host claims what is due
//	send.go      it sends a claimed backlog, one notification after the other
//	post.go      a request, and the claim that is renewed meanwhile
//	claim.go     a claim: renewed, completed, postponed, or claimed again
//	reject.go    pushers whose pushkeys are rejected
//	content/     what is sent, and what answers mean: pure
//	turns/       whose turn it is: pure
//
// How long a pusher waits after an answer stands in one table, content.RetryIn; what
// an answer means, in content.Judge; when a notification is given up, in
// content.Trouble.
//
// # A backlog's states
//
//	state    event                                next     does
//	-        enqueued, this host has a turn       claimed  sends
//	-        enqueued, it has none                due
//	due      a host looks, and has a turn         claimed  reads the pusher anew
//	due      a host looks, and has none           due      later, in proportion to how many wait
//	claimed  the pusher is gone or disabled       -        drops all
//	claimed  expired, or read                     claimed  drops the notification
//	claimed  the user looks elsewhere             due      as the host says, 5 min at most; a call ends it
//	claimed  2xx                                  claimed  completes the notification
//	claimed  2xx that rejects the pushkey         -        removes the pusher, drops all
//	claimed  400, 413, 422                        claimed  sends it as event_id_only, then drops it
//	claimed  any other answer, or none            due      see content.RetryIn
//	claimed  the 8th failure, others are taken    claimed  sends it as event_id_only, then drops it
//	claimed  8th 5xx but 503 and 507, none taken  due      tries the second one once: if it is taken, the first is to blame
//	claimed  the host stops                       due      at once
//	claimed  the host dies                        due      when the claim lapses
//	any      more than 100 wait                   same     drops what is least important
//	any      the pusher was set anew, and more comes  due
//
// Two requests for one pusher are under way at the same time only where a host was
// paused, or cut off from the queue, for longer than its claim lasts. It cuts its
// request off when the claim lapses.
package delivery
