package explain

import (
	"fmt"

	"softroce/internal/daemon"
	"softroce/nic"
	"softroce/transport"
)

// explainState explains a queue pair that is not connected.
func explainState(q *nic.QPInfo) (why, mend string) {
	switch q.State {
	case "RESET":
		return "is in RESET: it can neither send nor receive", "ibv_modify_qp to INIT, RTR and RTS, or rdma_create_qp and rdma_connect or rdma_accept"
	case "INIT":
		return "is in INIT: it is not connected, and drops every packet; receives may be posted",
			"ibv_modify_qp to RTR with ah_attr, dest_qp_num and rq_psn of the peer, or rdma_connect or rdma_accept"
	case "RTR":
		if q.Type == "XRC_TGT" {
			return "is in RTR: an XRC target receives in this state", ""
		}
		return "is in RTR: it receives, but cannot send", "ibv_modify_qp to RTS with sq_psn, timeout, retry_cnt and rnr_retry, or rdma_establish"
	}
	return "is in " + q.State + ", for a reason that was not recorded", "ibv_modify_qp to RESET"
}

// explainStall explains what a queue pair in RTS or SQD waits for.
func explainStall(d *daemon.Device, q *nic.QPInfo) (why, mend string) {
	s := q.Stall
	request := fmt.Sprintf("%s of %d bytes", s.Operation, s.Length)
	switch s.For {
	case transport.WaitReply:
		return waitsForReply(request, s)
	case transport.WaitRNR:
		left := fmt.Sprintf("%d repetitions are left", s.RNRRetriesLeft)
		if s.RNRRetriesLeft == infiniteRNRRetry {
			left = "it repeats without end (rnr_retry 7)"
		}
		return fmt.Sprintf("waits with %s: the peer has no receive posted and last said %v; %s", request, s.NAK, left),
			"on the peer: ibv_post_recv"
	case transport.WaitCredits:
		return fmt.Sprintf("waits for credits: the peer has fewer receives posted than messages are outstanding; the oldest is %s", request),
			"on the peer: ibv_post_recv, as many as messages may be outstanding"
	case transport.WaitReads:
		return fmt.Sprintf("waits for the peer's responses: as many READs and atomics are outstanding as max_rd_atomic %d allows", s.Limit),
			"ibv_modify_qp to RTS with a greater max_rd_atomic, if this is too slow"
	case transport.WaitFence:
		return "waits with a fenced work request for the READs and atomics before it", ""
	case transport.WaitSQD:
		return "is in SQD: posted work requests wait until it is in RTS again", "ibv_modify_qp to RTS"
	case transport.WaitTurn:
		return "is sending " + request, ""
	}
	return waitsForProgram(d, q)
}

const infiniteRNRRetry = 7

func waitsForReply(request string, s *transport.Stall) (why, mend string) {
	switch {
	case s.Timeouts == 0 && s.NAK != 0:
		return fmt.Sprintf("waits for the acknowledgement of %s; the peer last said %v", request, s.NAK), ""
	case s.Timeouts == 0:
		return "waits for the acknowledgement of " + request, ""
	case s.Silent:
		why = fmt.Sprintf("waits for the acknowledgement of %s: the peer has replied nothing", request)
	default:
		why = fmt.Sprintf("waits for the acknowledgement of %s: the peer has replied nothing more", request)
	}
	return fmt.Sprintf("%s, and %d retries are left", why, s.RetriesLeft),
		"check that the peer's queue pair exists and is at least in RTR, and that packets get there (softroce capture)"
}

// waitsForProgram explains a queue pair without incomplete work requests: the next step is the
// program's.
func waitsForProgram(d *daemon.Device, q *nic.QPInfo) (why, mend string) {
	for i := range d.CQs {
		c := &d.CQs[i]
		if c.Waiting > 0 && (c.ID == q.SendCQ || c.ID == q.RecvCQ) && c.Client == q.Client {
			return fmt.Sprintf("has nothing to send; %d completions in its completion queue (cqn %d) are not polled", c.Waiting, c.ID), "ibv_poll_cq"
		}
	}
	switch {
	case q.SRQ != 0:
		return "has nothing to send; its receives come from a shared receive queue (srqn " + fmt.Sprint(q.SRQ) + ")", ""
	case q.RecvPosted == 0:
		return "has nothing to send and no receive posted: it can take neither a SEND nor a WRITE with immediate", "ibv_post_recv, if the peer sends"
	}
	return fmt.Sprintf("has nothing to send; %d receives wait for messages of the peer", q.RecvPosted), ""
}
