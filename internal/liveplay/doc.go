// Package liveplay plays one side of captured RC and UC connections to a live NIC, and judges what
// the live NIC sends.
//
//  1. The requester's side: replay.RequesterScripts says what the responder of each stream
//     received: the packets, their order, the content of memory and the posted receives. The
//     responder's side: replay.ResponderScripts says what the requester posted, and the replies to
//     it (liveplay.go).
//  2. A verbs program on the live NIC's host creates such a queue pair and memory (endpoint.go).
//     Addresses, queue pair numbers and keys are replaced by those of the live NIC
//     (requestersetup.go, window.go).
//  3. A requesterPlayer sends packet by packet, each when it has the replies that the captured
//     requester had (requester.go), and retransmits what the network loses (requesterprogress.go).
//     A responderPlayer posts the work requests, and sends each reply when its cause has arrived
//     (responder.go, responderprogress.go).
//  4. replay.RequesterSession and replay.ResponderSession judge the packets of the live NIC:
//     softroce's queue pair has to send the same in its place.
//
// A testbed.Testbed is all that is known of the live NIC, so it may also be a simulated one.
package liveplay
