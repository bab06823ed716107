package transport

// A DropReason names why a received packet was thrown away. Each dropped packet
// counts under exactly one.
type DropReason uint8

// The reasons, in the order in which a packet meets the checks. What is no RoCEv2 frame ends at its link, under one
// of wire.Drop.
const (
	DropTruncated         DropReason = iota // shorter than the headers of its opcode
	DropOpcode                              // opcode not assigned
	DropPad                                 // pad count exceeds the payload
	DropTVer                                // transport version not 0
	DropQPN                                 // no such QP
	DropGID                                 // UD: not to one of the NIC's GIDs, or in another VLAN
	DropGroup                               // no QP is attached to the multicast group
	DropPKey                                // partition key does not match
	DropService                             // opcode of another service than the QP's
	DropSource                              // not from the QP's peer
	DropState                               // the QP's state takes no such packet
	DropQKey                                // Q_Key does not match
	DropICRC                                // invariant CRC is wrong
	DropSequence                            // request ahead of the expected PSN
	DropDuplicateRequest                    // duplicate that nothing answers to
	DropReceiverNotReady                    // no receive WQE: RNR, or UC and UD without one
	DropGhostACK                            // acknowledges what is not outstanding
	DropACKBeyondSent                       // acknowledges what was never sent
	DropUnmatchedResponse                   // READ or atomic response that answers no request
	DropInvalid                             // UC, UD: a request that RC would refuse as invalid
	DropAccess                              // UC: a WRITE that RC would refuse for its key or range
	DropRecvTooShort                        // UC, UD: longer than the receive WQE
	DropAbandonedMessage                    // rest of a UC message whose start was lost
	DropCNP                                 // congestion notification nobody listens to
	DropLocalError                          // the QP failed while it handled the packet
	DropStaleResponse                       // reply that came while the requester waits to go back
	NumDropReasons
)

var dropNames = [NumDropReasons]string{
	"truncated", "opcode", "pad", "tver", "unknown_qpn", "unknown_gid", "multicast_group", "pkey", "service", "source",
	"qp_state", "qkey", "icrc", "out_of_sequence", "duplicate", "receiver_not_ready", "ghost_ack",
	"ack_beyond_sent", "unmatched_response", "invalid_request", "remote_access", "receive_too_short", "abandoned_message", "cnp", "local_error", "stale_response",
}

func (r DropReason) String() string {
	if r < NumDropReasons {
		return dropNames[r]
	}
	return "unknown"
}
