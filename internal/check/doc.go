// Package check judges a capture by the rules that a capture can show: what headers may
// hold, how a requester may send and send again, and how a responder may answer.
//
// It needs no NIC and no model of one. Each rule says what no loss, delay or duplication
// on the way can explain, so that a capture taken anywhere on the path, of any NICs,
// from the middle of their conversation, passes when they keep to the rules:
//
//   - What came before the capture is unknown: PSNs, MSNs and path MTU are learned.
//   - A packet may be lost behind the point of capture: a retransmission needs no cause.
//   - A packet may be lost before the point of capture: a gap is none of anybody's fault,
//     until the other end acknowledges what nobody sent.
//   - A packet may be late or come twice. The IPv4 Identification, where it counts,
//     tells such a packet from one that was sent again.
//
// A file is read twice. The first reading (survey.go) finds the flows, one for each
// queue pair that packets go to, their path MTU, and which two belong together. The
// second (judge.go) takes each packet through
//
//  1. the rules of a single packet: headers.go, datagram.go;
//  2. those of a request within its stream: request.go, resend.go; UC has its own, uc.go;
//  3. those of a reply to the stream of the opposite flow: reply.go, read.go.
//
// What breaks a rule is a Violation. Ways in which the Linux driver is known to depart from
// the specification, and what else is worth a look, are Notes.
//
// Memory is bounded: see limits.go. What no longer fits is not judged, and said so.
package check
