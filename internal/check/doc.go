// Package check judges a capture by the rules that a capture can show: what headers may hold, how a
// requester may send and retransmit, and how a responder may reply.
//
// It needs no NIC and no model of one. A rule is broken only where no loss, delay or duplication in
// the network explains what the capture shows. A capture of any NICs that keep to the rules passes,
// wherever on the path it was taken, and also if it begins in the middle of a conversation:
//
//   - What happened before the capture is unknown: PSNs, MSNs and the path MTU are inferred.
//   - A packet may be lost after the point of capture: a retransmission needs no visible cause.
//   - A packet may be lost before the point of capture: a gap breaks no rule until the peer
//     acknowledges what was not sent.
//   - A packet may be delayed or duplicated. Where the IPv4 Identification counts up, it
//     distinguishes such a packet from a retransmission.
//
// A file is read twice. The first pass (check.go) finds the flows, their path MTUs and their
// opposite directions: see internal/conversation. The second pass (judge.go) applies to each packet
//
//  1. the rules of a single packet: headers.go, datagram.go;
//  2. the rules of a request within its stream: request.go, sequence.go, resend.go; of UC: uc.go;
//  3. the rules of a reply to the stream of the opposite direction: reply.go, msn.go, read.go.
//
// Packets that queue pairs discard, and those with an address or service that is not that of their
// connection, are judged in stray.go, so that they are not also missing. timeorder.go puts frames
// in the order of their timestamps.
//
// setup.go uses what the connection manager's messages say about a connection, if the capture has
// them.
//
// mutation_test.go measures what is found, and writes the table in docs/reference/check-rules.md.
//
// Both passes skip further views of a packet that was captured on several interfaces. coverage.go
// says what was judged, recovery.go which packets were sent again, and why.
//
// A packet that breaks a rule is a Violation. Known deviations of the Linux driver from the
// specification, and what else deserves attention, are Notes.
//
// Memory is bounded: see limits.go. What exceeds the bounds is not judged, and a note says so.
package check
