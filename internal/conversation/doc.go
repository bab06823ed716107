// Package conversation reconstructs the conversations of a capture: which packets belong to the
// same pair of queue pairs, which requests and replies form a stream, and which packets form a
// message. The judges of captures (internal/check, internal/replay) build on it and add only their
// judgment.
//
//  1. Views (views.go) recognizes packets that were captured on more than one interface, and Mirror
//     (mirror.go) those that a mirror port copied. Survey (survey.go) sorts packets into flows, one
//     for each queue pair that packets go to, and finds the flow in the opposite direction. They
//     read one packet at a time, in bounded memory.
//  2. PathMTU (mtu.go) infers the path MTU from payload lengths and from the PSNs of READs.
//  3. Unwrap (psn.go) counts PSNs on where 24 bits wrap.
//  4. Capture (capture.go) holds a whole capture and splits it into streams: the requests of one
//     queue pair and the replies to them (stream.go), in the order in which they were sent, without
//     the copies that the network made.
//  5. Identifications and Fingerprint (order.go) distinguish packets that the network delayed or
//     duplicated from retransmissions. They too read one packet at a time.
//  6. A Part (part.go) says how many PSNs a packet takes, which packets it may follow in a message,
//     and whether it expects a reply.
//  7. A capture may begin in the middle of a connection. begin.go finds the first PSN and MSN that
//     a stream can be judged from, and message.go assembles its messages.
//  8. Remarks (remarks.go) says which packets were sent again, and why. It reads one packet at a
//     time.
package conversation
