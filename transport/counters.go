package transport

import "unsafe"

// Counters are kept per NIC and shared by its queue pairs. Names follow the hw_counters of mlx5
// where it has an equivalent.
type Counters struct {
	// Responder.
	DuplicateRequest uint64 // requests with a PSN before the expected one
	OutOfSequence    uint64 // requests with a PSN after the expected one
	OutOfBuffer      uint64 // requests without a receive work request
	RxReadRequests   uint64
	RxWriteRequests  uint64 // messages
	RxSendRequests   uint64 // messages
	RxAtomicRequests uint64
	RxFlushRequests  uint64
	RxAtomicWrites   uint64
	RxECNMarked      uint64    // packets marked with "congestion experienced"
	CNPSent          uint64    // congestion notifications sent because of them
	CNPHandled       uint64    // congestion notifications received that a rate answers
	RxMulticast      uint64    // multicast datagrams, counted once for each receiving queue pair
	NAKSent          [5]uint64 // by code: PSN sequence, invalid request, remote access, remote operational, invalid RD
	RNRSent          uint64
	ACKSent          uint64
	RespLocalLength  uint64 // resp_local_length_error
	RespRemoteAccess uint64 // resp_remote_access_errors
	RespCQEError     uint64
	RespCQEFlush     uint64

	// Requester.
	TxSendRequests  uint64 // SENDs completed without an error
	PacketSeqErr    uint64 // NAKs received for a PSN sequence error
	RNRReceived     uint64 // rnr_nak_retry_err
	NAKReceived     [5]uint64
	ImpliedNAK      uint64 // implied_nak_seq_err
	LocalACKTimeout uint64 // local_ack_timeout_err

	// AdaptiveRetransmissions counts retransmissions after recent losses, before the local ACK
	// timeout: roce_adp_retrans.
	AdaptiveRetransmissions uint64

	Retransmitted    uint64 // retransmitted packets
	Retries          uint64 // transport retries used
	RetryExceeded    uint64
	RNRRetryExceeded uint64
	ReqRemoteInvalid uint64 // req_remote_invalid_request
	ReqRemoteAccess  uint64 // req_remote_access_errors
	ReqCQEError      uint64
	ReqCQEFlush      uint64
	TxOverlong       uint64 // datagrams not sent because they exceed the port's MTU

	Drops    [NumDropReasons]uint64
	RxOpcode [256]uint64
	TxOpcode [256]uint64
}

// QPCounters are kept for each queue pair.
type QPCounters struct {
	Retransmitted   uint64 `json:"retransmitted"` // packets
	Timeouts        uint64 `json:"timeouts"`      // local ACK timeouts
	NAKsSent        uint64 `json:"nak_sent"`
	NAKsReceived    uint64 `json:"nak_received"`
	RNRNAKsSent     uint64 `json:"rnr_nak_sent"`
	RNRNAKsReceived uint64 `json:"rnr_nak_received"`
}

// Add adds the counters of another NIC, or of another part of one.
func (c *Counters) Add(o *Counters) {
	to, from := c.values(), o.values()
	for i, n := range from {
		to[i] += n
	}
}

// values returns the fields, all of which are numbers of 64 bits.
func (c *Counters) values() *[unsafe.Sizeof(Counters{}) / 8]uint64 {
	return (*[unsafe.Sizeof(Counters{}) / 8]uint64)(unsafe.Pointer(c))
}

// Drop counts a dropped packet.
func (c *Counters) Drop(r DropReason) { c.Drops[r]++ }
