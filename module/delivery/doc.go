// Package delivery sends notifications of new events to push gateways. [Delivery.Notify]
// stores them in the backlogs of a [module.DeliveryQueue], and any running host sends
// them.
//
// # Where to find what
//
//	notify.go    Notify: an event becomes a notification in the backlog of each pusher
//	fanout.go    the same for an event with many recipients, in parts
//	look.go      the loop that claims due backlogs
//	send.go      sends the notifications of a claimed backlog, one after the other
//	post.go      one request, and the renewal of the claim while it is in flight
//	claim.go     the operations on a claim: renew, complete, postpone
//	gates.go     the turns of requests, for several goroutines
//	reject.go    removes pushers with rejected pushkeys
//	content/     pure: the body of a request, and the meaning of its answer
//	turns/       pure: which requests a host may send, and in which order
//
// How long a pusher waits after an answer, for example a 502, is in content.RetryIn;
// its test is TestWaitsAfterAnswers. The function content.Judge has the meaning of each
// answer. The method content.Trouble.After decides when a failing notification is dropped.
//
// # The states of a backlog
//
//	state    event                               next     action
//	-        added at a host that may send       claimed  sends, or waits for a place at this host
//	-        added at another host               due
//	-        counts are added                    due      3 s later
//	due      a host looks, and has closed its    due      leaves it to other hosts; one of a gate
//	         gate                                         tries it every 5 s
//	due      a host looks                        claimed  reads the pusher again, then the same
//	claimed  has no place for 2.5 s              due      0.1 to 0.3 s later
//	claimed  too many wait for a place at this   due      0.1 to 0.3 s later; the more are put off,
//	         host                                         the later
//	claimed  its gate closes before it is sent   due      at once, at other hosts
//	claimed  the pusher is removed or disabled   -        drops all
//	claimed  cannot read the pusher              due      1 s later
//	claimed  expired, read, or counts sent last  claimed  drops the notification
//	claimed  the host asks for a delay           due      waits up to 5 min; a call ends the delay
//	claimed  2xx                                 claimed  completes the notification
//	claimed  2xx that rejects the pushkey        -        removes the pusher, drops all
//	claimed  400, 413, 422                       claimed  sends it as event_id_only, then drops it
//	claimed  any other answer, or none           due      see content.RetryIn and content.Trouble.After
//	claimed  the host stops                      due      at once
//	claimed  the host dies                       due      when the claim lapses
//	any      more than 100 notifications wait    same     drops the least important, if they are
//	         at an addition                               30 s old
//	any      the pusher is set again, and more is added  due  at once
//
// An event with many recipients first waits in a backlog of its room; see fanout.go.
// Hosts claim and release this backlog like others. Each step adds the event to the
// backlogs of some recipients.
//
// Two requests for a pusher may be in flight if a host was paused or disconnected from
// the queue for longer than a claim lasts. The host cancels its request when the claim
// lapses, but the gateway may already have the notification.
package delivery
