package transport

// A DropReason says why a received packet was dropped. Each dropped packet counts under exactly one
// reason.
type DropReason uint8

// Drop reasons, roughly in the order of the checks (nic/rx.go). Frames that are not RoCEv2 are
// dropped by the link and counted under wire.Drop.
const (
	DropTruncated         DropReason = iota // shorter than the headers of its opcode
	DropOpcode                              // opcode not assigned
	DropPad                                 // pad count exceeds the payload
	DropTVer                                // transport version not 0
	DropQPN                                 // no such QP
	DropGID                                 // UD: destination is not a GID of the NIC, or the VLAN differs
	DropGroup                               // no QP is attached to the multicast group
	DropPKey                                // partition key does not match
	DropService                             // opcode of a service other than the QP's
	DropSource                              // not from the QP's peer
	DropState                               // not accepted in the QP's state
	DropQKey                                // Q_Key does not match
	DropICRC                                // invariant CRC is wrong
	DropSequence                            // request after the expected PSN
	DropDuplicateRequest                    // duplicate request without a response to repeat
	DropReceiverNotReady                    // no receive WQE (RC and XRC send an RNR NAK)
	DropGhostACK                            // acknowledges a PSN that is no longer outstanding
	DropACKBeyondSent                       // acknowledges a PSN that was never sent
	DropUnmatchedResponse                   // READ or atomic response without a matching request
	DropInvalid                             // UC, UD: a request that RC would reject as invalid
	DropAccess                              // UC: a WRITE that RC would reject for its R_Key or range
	DropRecvTooShort                        // UC, UD: message exceeds the receive WQE
	DropAbandonedMessage                    // UC: rest of a message whose start was lost
	DropCNP                                 // congestion notification that has no effect
	DropLocalError                          // the QP, or a work request, failed because of the packet
	DropStaleResponse                       // reply to packets that the requester is about to retransmit
	DropMemoryWait                          // a copy for the QP's client is blocked, and no more packets are kept
	NumDropReasons
)

var dropNames = [NumDropReasons]string{
	"truncated", "opcode", "pad", "tver", "unknown_qpn", "unknown_gid", "multicast_group", "pkey", "service", "source",
	"qp_state", "qkey", "icrc", "out_of_sequence", "duplicate", "receiver_not_ready", "ghost_ack",
	"ack_beyond_sent", "unmatched_response", "invalid_request", "remote_access", "receive_too_short", "abandoned_message", "cnp", "local_error", "stale_response",
	"memory_wait",
}

func (r DropReason) String() string {
	if r < NumDropReasons {
		return dropNames[r]
	}
	return "unknown"
}
