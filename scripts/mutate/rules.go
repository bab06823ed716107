package main

// A mutation breaks one rule: old, which occurs once in the file, becomes new.
type mutation struct {
	rule     string
	file     string // in transport/, unless it has a folder
	old, new string
}

var mutations = []mutation{
	{"a request ahead of the expected PSN causes one NAK, then silence (IBTA 9.7.5.2.4)", "responder.go",
		"if !r.replies.nakSent {", "if true {"},
	{"a duplicate SEND or WRITE is acknowledged again (9.7.5.1.2)", "responder.go",
		"	case in.Response == packet.KindAck:\n		r.replies.ack = true // acknowledged again (C9-105)\n", "	case in.Response == packet.KindAck:\n"},
	{"a repeated atomic is not executed again (9.7.5.1.4)", "responder.go",
		"	case d < 0:\n		q.duplicate(e, p, in)\n", "	case d < 0 && in.Kind != packet.KindFetchAdd:\n		q.duplicate(e, p, in)\n"},
	{"a WRITE needs a key with the right to write (9.7.4.1.5)", "responder.go",
		"r.va, r.left, ib.AccessRemoteWrite)", "r.va, r.left, 0)"},
	{"the queue pair's access flags gate remote operations (9.7.4.1.3)", "responder.go",
		"return q.attr.Access&need == need", "return need|1 != 0"},
	{"the MSN counts a READ when it is accepted (C9-148)", "responder.go",
		"	r.msn = packet.PSNAdd(r.msn, 1)\n	a.msn, a.position", "	a.msn, a.position"},
	{"a run is taken as a whole only at the expected PSN (9.7.5.1)", "responder_run.go",
		"case p.PSN != r.epsn || p.AckReq", "case p.AckReq"},
	{"a run of a WRITE ends where its RETH says (9.7.4.1.6)", "responder_run.go",
		"if uint32(p.Len) > left || p.Run.Ends != (uint32(p.Len) == left) ||", "if"},
	{"a run of a WRITE needs a region that is still registered (9.7.4.1.5)", "responder_run.go",
		"if !region.Live() {", "if false {"},
	{"a run consists of packets that request no ACK, except LAST (9.7.5.2.4)", "requester.go",
		"n := min(rest, int(r.withoutAck()), e.Sink.Run(q))", "n := min(rest, e.Sink.Run(q))"},
	{"data whose read from memory has failed are not sent", "readahead.go",
		"return nil, true, err //", "return b, true, err //"},
	{"First and Middle are exactly as long as the path MTU (9.7.4.1.6)", "responder.go",
		"return p.Len == mtu", "return p.Len <= mtu"},
	{"no more outstanding READs and atomics than max_dest_rd_atomic (9.7.4.1.4)", "responder.go",
		"case r.replies.full():\n\t\treturn q.refuseReads(e, p)\n\tcase p.Len != 0:\n\t\treturn q.refuseLength(e, p)\n\tcase p.RETH",
		"case p.Len != 0:\n\t\treturn q.refuseLength(e, p)\n\tcase p.RETH"},
	{"a WRITE is as long as its RETH says (9.7.4.1.6)", "responder.go",
		"return n == left", "return n <= left"},
	{"a request without a receive work request is refused and not placed (9.7.5.2.8)", "responder.go",
		"packet.SyndromeRNR | packet.Syndrome(q.attr.MinRNRTimer)", "packet.NAKInvalidRequest"},
	{"a fence delays work behind READs and atomics (C10-79)", "local.go",
		"return q.req.reads > 0 ||", "return false ||"},
	{"the transport retry counter runs out (9.7.6.1.3)", "recovery.go",
		"if r.retries == 0 {", "if false {"},
	{"rnr_retry 7 never ends (9.7.5.2.8)", "recovery.go",
		"if r.rnrRetries != infiniteRNRRetry {", "if true {"},
	{"an acknowledgement that passes a READ without a response implies a NAK (9.7.5.1.1)", "completer.go",
		"whole = end <= r.una", "whole = true"},
	{"a resend begins at the oldest PSN that is not acknowledged (9.7.5.1.1)", "recovery.go",
		"	r.stopTimer()\n	q.goBack(r.una)\n	r.timeRequest", "	r.stopTimer()\n	q.goBack(r.una + 1)\n	r.timeRequest"},
	{"a repeated READ restarts its response, ahead of later ones", "reply.go",
		"	a.next = min(a.next, n)\n", ""},
	{"a loss halves the send window", "recovery.go",
		"	r.window.Lost(r.send - r.una)\n", ""},
	{"after a loss the requester retransmits before the local ACK timeout", "recovery.go",
		"soon <= (r.deadline-now)/2; r.early {", "soon < 0; r.early {"},
	{"a peer that has not replied is given up after retry_cnt + 1 timeouts (9.7.6.1.3)", "recovery.go",
		"if int32(r.answered-q.sq.headIndex) > 0 {", "if true {"},
	{"a doubled local ACK timeout is shorter by a random part", "recovery.go",
		"r.shorten = e.Rand.Uint32()", "r.shorten = 0"},
	{"a doubled local ACK timeout is not below the timeout that was set (9.7.6.1.3)", "recovery.go",
		"(wait >> 1 >> 16)", "(wait >> 16)"},
	{"a timeout does not widen the send window", "transport/congestion/window.go",
		"size := min(w.size, restartWindow)", "size := uint64(restartWindow)"},
	{"a reply to a request that was sent again without a NAK is not timed", "transport/congestion/roundtrip.go",
		"if r.began == 0 && psn >= r.ambiguous {", "if r.began == 0 {"},
	{"the buffer of a READ or atomic is checked when the response arrives", "scatter.go",
		"	if w.ownResponse && w.kind != packet.KindAtomicWrite {", "	if w.ownResponse && w.kind == packet.KindAtomicWrite {"},
	{"the keys of a receive are of its SRQ's protection domain", "xrc.go",
		"if q.cfg.RecvPD != nil {", "if false {"},
	{"a receive reports the access error of its WRITE with immediate (11.6.2)", "responder.go",
		"		q.resp.hasRecv = rq.Next(&q.resp.recv)\n", ""},
	{"UC: a gap loses the message that is open (9.8.2.2.4)", "responder_unreliable.go",
		"	if p.PSN != r.epsn {\n		r.message = packet.KindNone\n", "	if p.PSN != r.epsn {\n"},
	{"UD: a datagram with another Q_Key is dropped (9.6.1.3.4)", "responder_unreliable.go",
		"case p.DETH.QKey != q.attr.QKey:", "case false:"},
	{"an error of a UC or UD send leaves the receive queue alone: SQE (10.3.1)", "requester.go",
		"q.state, q.sqdNotify = ib.QPSSQE, false", "q.state, q.sqdNotify = ib.QPSErr, false"},
	{"XRC: all packets of a message name one shared receive queue (A14)", "xrc.go",
		"if q.resp.message != packet.KindNone && p.XRCSRQ != t.number {", "if q.resp.message == 99 && packet.KindNone == 0 {"},
	{"two limited members of a partition do not receive from each other (10.9.3)", "qp.go",
		"k&0x7fff == q.attr.PKey&0x7fff && (k|q.attr.PKey)&0x8000 != 0", "k&0x7fff == q.attr.PKey&0x7fff"},
}

// An invariantMutation breaks a rule that an invariant of the simulation rests on. The simulation
// must report that invariant.
type invariantMutation struct {
	invariant int // its number in docs/internals/invariants.md
	mutation
}

var invariantMutations = []invariantMutation{
	{9, mutation{"time in which the engine does not run is no timeout", "nic/timers.go",
		"e.stalled += max(0, ", "e.stalled += min(0, "}},
	{10, mutation{"what waits for the link of a response is not sent if the READ is repeated", "nic/tx.go",
		"(at-psn)&packet.PSNMask < n &&", "(at-psn)&packet.PSNMask < n && n == 0 &&"}},
	{11, mutation{"the payload of frames is copied before an operation releases memory", "nic/engine.go",
		"		d.tx.copyWaiting()\n		d.link.CopyPayload()\n", "		_ = d\n"}},
	{12, mutation{"events follow the completions that they speak of", "nic/events.go",
		"	case e.QP == nil && e.CQ == nil && e.SRQ == nil:\n", "	case true:\n"}},
	{15, mutation{"memory that blocks holds only the queue pairs of its client", "nic/hold.go",
		"return q.part.hold != nil ||", "return len(q.device.engine.holds) > 0 ||"}},
}
