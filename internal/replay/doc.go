// Package replay compares the NICs of a capture with softroce's transport.
//
// A capture holds RC connections. Each has up to two streams: the requests of one end and the
// replies of the other. A stream is replayed twice:
//
//	captured requests → a new responder → its replies, compared with the captured ones
//	captured replies  → a new requester → its requests, compared with the captured ones
//
// The responder's memory is filled from the captured READ responses; the requester's work requests
// are rebuilt from the captured requests. Both are a transport.QP in virtual time.
//
// A capture shows what passed one point of the network. What was lost after that point is inferred
// from the replies (the PSN of a NAK, the requests that are retransmitted after a timeout). It is
// listed as lost, and not fed. Packets that the network duplicated or reordered after that point
// are inferred from repeated responses, and from NAKs for packets that arrived. A difference is
// what none of this explains. Known deviations of the Linux driver from the specification are
// listed by name, and are not differences.
//
// What an implementation may choose (credits, when ACKs are coalesced, AckReq, MigReq) is compared
// in strict mode only.
package replay
