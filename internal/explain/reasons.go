package explain

import (
	"fmt"
	"strings"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A reason is how a transport.Reason reads. why completes the sentence "the queue pair …".
type reason struct {
	why      func(q *nic.QPInfo, f *transport.Failure) string
	mend     func(q *nic.QPInfo, f *transport.Failure) string
	counters []string // of the NIC
}

func say(s string) func(*nic.QPInfo, *transport.Failure) string {
	return func(*nic.QPInfo, *transport.Failure) string { return s }
}

// refused returns a why for a request of the peer that was refused.
func refused(because string) func(*nic.QPInfo, *transport.Failure) string {
	return func(_ *nic.QPInfo, f *transport.Failure) string {
		return fmt.Sprintf("refused an incoming %s: %s", request(f), because)
	}
}

var reasons = map[transport.Reason]reason{
	transport.ReasonRetryExceeded: {
		func(q *nic.QPInfo, f *transport.Failure) string {
			said := "the peer acknowledged nothing more"
			switch {
			case f.Syndrome != 0:
				said = fmt.Sprintf("the peer last said %v", f.Syndrome)
			case f.Silent && f.Timeouts > 0:
				said = fmt.Sprintf("the peer replied nothing for %d timeouts", int(f.Limit)+1)
			}
			return fmt.Sprintf("gave up %s: %s, and the retry count (retry_cnt %d) is exhausted", request(f), said, f.Limit)
		},
		func(q *nic.QPInfo, _ *transport.Failure) string {
			return fmt.Sprintf("check that the peer's queue pair %d at %v exists and is at least in RTR, that packets get there (softroce capture), and timeout and retry_cnt of ibv_modify_qp to RTS", q.RemoteQPN, q.Dst)
		},
		[]string{"local_ack_timeout_err", "retries"},
	},
	transport.ReasonRNRExceeded: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("gave up %s: the peer had no receive posted and said %v, and the RNR retry count (rnr_retry %d) is exhausted", request(f), f.Syndrome, f.Limit)
		},
		say("on the peer: post receives with ibv_post_recv before this side sends; or set rnr_retry 7, which has no end, with ibv_modify_qp to RTS"),
		[]string{"rnr_nak_retry_err", "rnr_retry_exceeded_err"},
	},
	transport.ReasonRemoteInvalid: {
		naked, say("on the peer: post receives that are long enough, give its queue pair the access flag of the operation, and a max_dest_rd_atomic of at least this max_rd_atomic; softroce explain there says which"),
		[]string{"req_remote_invalid_request"},
	},
	transport.ReasonRemoteAccess: {
		naked, func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("on the peer: ibv_reg_mr with %s, in the protection domain of its queue pair, and use its rkey and a range inside it; softroce explain there says which check failed", accessFor(f.Operation))
		},
		[]string{"req_remote_access_errors"},
	},
	transport.ReasonRemoteOperational: {
		naked, say("on the peer: check the lkey and the range of its receives (ibv_post_recv), and that its memory is still mapped; softroce explain there says which"),
		nil,
	},
	transport.ReasonBadResponse: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("got a response of the wrong length or kind to %s", request(f))
		},
		say("set the same path_mtu on both sides with ibv_modify_qp to RTR; softroce check on a capture judges the peer"), nil,
	},
	transport.ReasonSendMemory: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("could not use the scatter/gather list of %s: %s", request(f), checkFailed(f, "lkey"))
		},
		func(_ *nic.QPInfo, f *transport.Failure) string { return mendMemory(f, "lkey") }, nil,
	},
	transport.ReasonSendInvalid: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("cannot execute the work request %s", request(f))
		},
		say("ibv_post_send with an operation that the transport and the NIC have, a list within max_send_sge, inline data within max_inline_data, and for UD an address handle of ibv_create_ah"), nil,
	},
	transport.ReasonSendLength: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("cannot send %s: it is longer than the operation allows", request(f))
		},
		say("ibv_post_send with at most 2 GiB, and 8 bytes for an atomic"), nil,
	},
	transport.ReasonReadDepth: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("cannot execute %s: its max_rd_atomic is 0", request(f))
		},
		say("ibv_modify_qp to RTS with max_rd_atomic of at least 1, and to RTR on the peer with as much max_dest_rd_atomic"), nil,
	},
	transport.ReasonWindow: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("could not execute %s: the window, its region or its access flags do not allow it", f.Operation)
		},
		say("ibv_reg_mr with IBV_ACCESS_MW_BIND for the region, and bind windows of the queue pair's protection domain only"), nil,
	},
	transport.ReasonMessageOrder: {
		refused("the First, Middle and Last packets of its message are out of order"),
		say("softroce check on a capture judges the peer"), nil,
	},
	transport.ReasonNoSRQ: {
		refused("the XRC domain has no shared receive queue of that number"),
		say("ibv_create_srq_ex in this XRC domain, and send its number (ibv_get_srq_num) to the peer"), nil,
	},
	transport.ReasonNotPermitted: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: the queue pair does not allow %v", request(f), f.Need)
		},
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("ibv_modify_qp to INIT with qp_access_flags %s", flags(f.Need))
		}, nil,
	},
	transport.ReasonNotSupported: {refused("this NIC does not have the operation"), say("use another operation, or a persona that has it (softroce persona)"), nil},
	transport.ReasonPacketLength: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: a payload of %d bytes does not fit its place in the message at path MTU %d", request(f), f.Length, f.Room)
		},
		say("ibv_modify_qp to RTR with the same path_mtu on both sides"), nil,
	},
	transport.ReasonMessageTooLong: {refused("it is longer than 2 GiB"), say("on the peer: ibv_post_send with at most 2 GiB"), nil},
	transport.ReasonReadsExceeded: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: more READs and atomics are outstanding than max_dest_rd_atomic %d", request(f), f.Limit)
		},
		say("ibv_modify_qp to RTR with a max_dest_rd_atomic of at least the peer's max_rd_atomic"), nil,
	},
	transport.ReasonMisaligned: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: the address%s is not a multiple of 8", request(f), address(f))
		},
		say("on the peer: ibv_post_send with an aligned wr.atomic.remote_addr"), nil,
	},
	transport.ReasonRemoteMemory: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: %s", request(f), checkFailed(f, "rkey"))
		},
		func(_ *nic.QPInfo, f *transport.Failure) string { return mendMemory(f, "rkey") },
		[]string{"resp_remote_access_errors"},
	},
	transport.ReasonInvalidate: {
		refused("it may not invalidate the rkey that it names"),
		say("on the peer: IBV_WR_SEND_WITH_INV only with the rkey of a type 2 window that is bound to this queue pair"),
		[]string{"resp_remote_access_errors"},
	},
	transport.ReasonRecvTooShort: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("refused an incoming %s: it has at least %d bytes, and the posted receive %d", f.Operation, f.Length, f.Room)
		},
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return "ibv_post_recv with a scatter/gather list as long as the longest message of the peer"
		},
		[]string{"resp_local_length_error"},
	},
	transport.ReasonRecvMemory: {
		func(_ *nic.QPInfo, f *transport.Failure) string {
			return fmt.Sprintf("could not use the scatter/gather list of a receive: %s", checkFailed(f, "lkey"))
		},
		func(_ *nic.QPInfo, f *transport.Failure) string { return mendMemory(f, "lkey") }, nil,
	},
	transport.ReasonMemoryGone: {
		say("could not access registered memory of its program: the process or its pages are gone"),
		say("ibv_dereg_mr before munmap or exit, and ibv_fork_init before fork"), nil,
	},
	transport.ReasonInjected: {say("got a completion with an error from a rule of the fault program"), say("softroce show faults lists the rules, softroce fault removes them"), nil},
	transport.ReasonCQ: {
		say("failed with its completion queue, which had no room for a completion"),
		say("ibv_poll_cq more often, or ibv_create_cq with as many entries as work requests can be outstanding"), nil,
	},
	transport.ReasonSRQ:      {say("failed with its shared receive queue"), say("ibv_get_async_event reports the cause; create another queue with ibv_create_srq"), nil},
	transport.ReasonEvent:    {say("failed because an event was raised for it (softroce fault)"), say("ibv_modify_qp to RESET, or create a new queue pair"), nil},
	transport.ReasonModified: {modified, nil, nil},
}

// naked says that the peer has refused a request.
func naked(_ *nic.QPInfo, f *transport.Failure) string {
	return fmt.Sprintf("failed because the peer refused %s: %v", request(f), f.Syndrome)
}

func modified(_ *nic.QPInfo, f *transport.Failure) string {
	why := "was moved to ERR by its program (ibv_modify_qp or rdma_disconnect), or by the daemon for it"
	if f.Operation != "" {
		why += ", which flushed the posted work requests, the oldest of them " + f.Operation
	}
	return why
}

// explainFailure returns why a queue pair has failed, and what mends it.
func explainFailure(q *nic.QPInfo) (why, mend string) {
	r, ok := reasons[q.Failure.Reason]
	if !ok {
		return fmt.Sprintf("failed: %v", q.Failure.Reason), ""
	}
	if r.mend != nil {
		mend = r.mend(q, q.Failure)
	}
	return r.why(q, q.Failure), mend
}

// request names the request of a failure.
func request(f *transport.Failure) string {
	operation := f.Operation
	if operation == "" {
		operation = "a request"
	}
	if f.Length > 0 && f.Reason != transport.ReasonPacketLength {
		operation += fmt.Sprintf(" of %d bytes", f.Length)
	}
	return operation
}

// checkFailed says which check of a region did not pass. key is "lkey" or "rkey".
func checkFailed(f *transport.Failure, key string) string {
	switch f.Check {
	case transport.CheckKey:
		return fmt.Sprintf("no memory region or window has its %s%s", key, hex(f.Key))
	case transport.CheckQP:
		return "the memory window is bound to another queue pair"
	case transport.CheckPD:
		return "the memory region is of another protection domain"
	case transport.CheckAccess:
		return fmt.Sprintf("the memory region does not grant %v", f.Need)
	case transport.CheckBounds:
		return fmt.Sprintf("%d bytes%s are not inside the memory region", f.Length, at(f))
	case transport.CheckLive:
		return "the memory region was deregistered, or the window unbound, meanwhile"
	}
	return "its memory could not be accessed"
}

// mendMemory returns the verb that makes the check pass.
func mendMemory(f *transport.Failure, key string) string {
	switch f.Check {
	case transport.CheckKey:
		return fmt.Sprintf("use the %s of a region that ibv_reg_mr has returned, and keep it until the last completion", key)
	case transport.CheckQP:
		return "bind the window (ibv_wr_bind_mw) on the queue pair that the peer uses it with"
	case transport.CheckPD:
		return "ibv_reg_mr and ibv_create_qp with the same struct ibv_pd"
	case transport.CheckAccess:
		return "ibv_reg_mr with " + flags(f.Need)
	case transport.CheckBounds:
		return "ibv_reg_mr for all of the memory, or a shorter range"
	case transport.CheckLive:
		return "ibv_dereg_mr only after the last completion, and after the peer is done"
	}
	return "ibv_reg_mr for memory that stays mapped"
}

// flags returns access flags under their C names.
func flags(a ib.Access) string {
	var names []string
	for name := range strings.SplitSeq(a.String(), "|") {
		names = append(names, "IBV_ACCESS_"+strings.ToUpper(name))
	}
	if a&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && a&ib.AccessLocalWrite == 0 {
		names = append([]string{"IBV_ACCESS_LOCAL_WRITE"}, names...)
	}
	return strings.Join(names, " | ")
}

// accessFor returns the flags that a region needs for an operation of the peer.
func accessFor(operation string) string {
	switch {
	case strings.HasPrefix(operation, "RDMA_READ"):
		return flags(ib.AccessRemoteRead)
	case strings.HasPrefix(operation, "ATOMIC_CMP"), strings.HasPrefix(operation, "ATOMIC_FETCH"):
		return flags(ib.AccessRemoteAtomic)
	case operation == "FLUSH":
		return flags(ib.AccessFlushGlobal)
	}
	return flags(ib.AccessRemoteWrite)
}

func hex(key uint32) string {
	if key == 0 {
		return ""
	}
	return fmt.Sprintf(" %#x", key)
}

func address(f *transport.Failure) string {
	if f.Address == 0 {
		return ""
	}
	return fmt.Sprintf(" %#x", f.Address)
}

func at(f *transport.Failure) string {
	if f.Address == 0 {
		return ""
	}
	return " at" + address(f)
}
