// Package delivery sends notifications of new events to push gateways, and mails. [Delivery.Notify]
// stores them in the logs of users, in a [module.DeliveryQueue], and any running host sends
// them. Each pusher with something to send has a place in the log of its user.
//
// # Where to find what
//
// A notification goes through notify.go, look.go, send.go, post.go and trouble.go, in this order.
//
//	notify.go    Notify: an event becomes a notification in the log of each recipient
//	look.go      the loop that claims due pushers
//	send.go      sends for a claimed pusher, one notification after the other
//	post.go      one request, and the renewal of the claim while it is in flight
//	claim.go     the operations on a claim: renew, complete, postpone
//	cut.go       removes the least important notifications of a long log
//	gather.go    batches questions about users, so that a slow store delays its own users
//	gates.go     the turns of requests, for several goroutines
//	collect.go   sends for a claimed pusher of kind email: all that waits, as one mail
//	trouble.go   what follows a failure
//	reject.go    removes pushers with rejected pushkeys
//	channel/     what a kind of pushers decides: its gateway, a request, what an answer means
//	content/     pure: the stored text of a notification
//	turns/       pure: which requests a host may send, and in which order
//
// How long a pusher waits after an answer, for example a 502, is in channel.Answer.RetryIn;
// its test is TestWaitsAfterAnswers. The function httppush.AnswerOf has the meaning of each
// answer of a push gateway.
//
// # The states of a pusher
//
//	state    event                               next     action
//	-        added at a host that may send       claimed  sends, or waits for a place at this host
//	-        added at another host, or its gate  due
//	         is closed and three wait to try it
//	-        counts are added                    due      3 s later
//	due      waits with counts, and a            due      at once
//	         message is added
//	due      a host looks, and has closed its    due      leaves it to other hosts; one of a gate
//	         gate                                         tries it every 5 s
//	due      a host looks                        claimed  sends, or waits for a place at this host
//	claimed  has no place for 2.5 s              due      0.1 to 0.3 s later
//	claimed  too many wait for a place at this   due      0.1 to 0.3 s later; the more are put off,
//	         host                                         the later
//	claimed  its gate closes before it is sent   due      at once, at other hosts
//	claimed  the user has it no more, or has     -        drops all that was there before the user's
//	         disabled it                                  pushers were read
//	claimed  cannot read the pusher              due      1 s later
//	claimed  expired, read, redacted, or counts  claimed  drops the notification
//	         that an event follows
//	claimed  the host asks for a delay           due      waits up to 5 min; a ringing call ends it
//	claimed  2xx                                 claimed  completes the notification
//	claimed  2xx that rejects the pushkey        -        removes the pusher, drops all
//	claimed  400, 413, 422                       claimed  sends it as event_id_only, then drops it
//	claimed  any other answer, or none           due      see channel.Answer.RetryIn; at a gate of the host's
//	                                                      own, its user goes behind others until an answer
//	claimed  no answer for 2 s                   claimed  waits for it; its user goes behind others at
//	                                                      the gate, until an answer
//	claimed  the host stops                      due      at once
//	claimed  the host dies                       due      when the claim lapses
//	due      the pusher is set again, and more   due      at once
//	         is added
//
// A pusher of kind email has these states instead, before its mail is sent:
//
//	state    event                               next     action
//	-        added                               due      after Mail.Delay
//	claimed  a mail was sent in Mail.Repeat, of  due      after Mail.Delay
//	         which the user has read nothing
//	claimed  nothing is left unread              -        drops all
//	claimed  what is unread is young             due      when the oldest is Mail.Delay old
//	claimed  the host cannot say what is read,   due      within a minute
//	         or whose the address is
//	claimed  the address is not the user's       -        removes the pusher, drops all
//	claimed  the address is the user's           claimed  notes the mail's end, then sends it
//	claimed  another host has noted the end, and claimed  sends what is before the end as the same
//	         died                                         mail
//
// A log with more than 120 notifications is cut by the host that adds one.
//
// Two requests for a pusher may be in flight if a host was paused or disconnected from
// the queue for longer than a claim lasts. The host cancels its request when the claim
// lapses, but the gateway may already have the notification.
package delivery
