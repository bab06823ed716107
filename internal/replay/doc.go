// Package replay compares the NICs of a capture with softroce's transport.
//
// A capture holds RC connections. Each has up to two streams: the requests of one end
// and the replies of the other. A stream is replayed twice:
//
//	captured requests → a fresh responder → its replies, beside the captured ones
//	captured replies  → a fresh requester → its requests, beside the captured ones
//
// The responder's memory is filled from the captured READ responses, the requester's work
// requests are rebuilt from the captured requests. Both are transport.QP, in virtual time.
//
// A capture shows what passed one point of the network. What was lost behind that point
// is inferred from the replies (the PSN that a NAK names, the requests that a timeout
// brings again) and listed as lost; it is not fed. So is what came twice, or was overtaken, from answers that are given again
// and NAKs for what arrived. A difference is what none of this explains. Known
// departures of the Linux driver from the specification are listed by name and are no differences.
//
// What an implementation may choose (credits, when ACKs are coalesced, AckReq, MigReq)
// is compared in strict mode only.
package replay
