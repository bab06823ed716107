package metrics

import (
	"fmt"
	"slices"

	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A Counter is a monotonic counter of a NIC.
type Counter struct {
	Name string // the name in sysfs; that of mlx5's hw_counters if it has such a counter
	Prom string // the name in Prometheus
	Help string
	read func(*nic.Counters) uint64
}

// Value returns the value: what was counted, from what it was set to.
func (k *Counter) Value(c *nic.Counters) uint64 { return k.read(c) + c.Shift[k.Name] }

// Find returns the counter of a name, or nil.
func Find(name string) *Counter {
	i := slices.IndexFunc(Counters, func(k Counter) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &Counters[i]
}

// Names returns the names of the counters.
func Names() (l []string) {
	for _, k := range Counters {
		l = append(l, k.Name)
	}
	return l
}

// Counters are the counters without labels, in the order of display.
var Counters = []Counter{
	{"port_xmit_packets", "node_infiniband_port_packets_transmitted_total", "Packets sent.",
		func(c *nic.Counters) uint64 { return c.Link.TxPackets }},
	{"port_rcv_packets", "node_infiniband_port_packets_received_total", "Packets received.",
		func(c *nic.Counters) uint64 { return c.Link.RxPackets }},
	{"port_xmit_bytes", "node_infiniband_port_data_transmitted_bytes_total", "Bytes of IP packets sent.",
		func(c *nic.Counters) uint64 { return c.Link.TxBytes }},
	{"port_rcv_bytes", "node_infiniband_port_data_received_bytes_total", "Bytes of IP packets received.",
		func(c *nic.Counters) uint64 { return c.Link.RxBytes }},
	{"port_xmit_discards", "node_infiniband_port_discards_transmitted_total", "Packets that the link could not send.",
		func(c *nic.Counters) uint64 {
			return c.TxStalled + c.Link.Drops[wire.DropUnreachable] + c.Link.Drops[wire.DropTooLong] + c.Link.Drops[wire.DropSend]
		}},
	{"link_downed", "node_infiniband_link_downed_total", "Times that the port went down.",
		func(c *nic.Counters) uint64 { return c.LinkDowned }},
	{"tx_send_requests", "softroce_tx_send_requests_total", "SENDs completed without an error.",
		func(c *nic.Counters) uint64 { return c.TxSendRequests }},
	{"rx_send_requests", "softroce_rx_send_requests_total", "SEND messages received.",
		func(c *nic.Counters) uint64 { return c.RxSendRequests }},
	{"rx_write_requests", "node_infiniband_rx_write_requests_total", "RDMA WRITE messages received.",
		func(c *nic.Counters) uint64 { return c.RxWriteRequests }},
	{"rx_read_requests", "node_infiniband_rx_read_requests_total", "RDMA READ requests received.",
		func(c *nic.Counters) uint64 { return c.RxReadRequests }},
	{"rx_atomic_requests", "node_infiniband_rx_atomic_requests_total", "Atomic requests received.",
		func(c *nic.Counters) uint64 { return c.RxAtomicRequests }},
	{"rx_flush_requests", "softroce_rx_flush_requests_total", "FLUSH requests received.",
		func(c *nic.Counters) uint64 { return c.RxFlushRequests }},
	{"rx_atomic_writes", "softroce_rx_atomic_writes_total", "ATOMIC WRITE requests received.",
		func(c *nic.Counters) uint64 { return c.RxAtomicWrites }},
	{"rx_multicast", "softroce_rx_multicast_datagrams_total", "Multicast datagrams delivered to QPs, counting each copy.",
		func(c *nic.Counters) uint64 { return c.RxMulticast }},
	{"acks_sent", "softroce_acks_sent_total", "ACKs sent.",
		func(c *nic.Counters) uint64 { return c.ACKSent }},
	{"np_ecn_marked_roce_packets", "node_infiniband_np_ecn_marked_roce_packets_received_total", "Packets received with the ECN mark of congestion.",
		func(c *nic.Counters) uint64 { return c.RxECNMarked }},
	{"np_cnp_sent", "node_infiniband_np_cnp_packets_sent_total", "Congestion notification packets sent.",
		func(c *nic.Counters) uint64 { return c.CNPSent }},
	{"rp_cnp_handled", "node_infiniband_rp_cnp_packets_handled_total", "Congestion notification packets received, and answered by a lower rate.",
		func(c *nic.Counters) uint64 { return c.CNPHandled }},
	{"rp_cnp_ignored", "node_infiniband_rp_cnp_ignored_packets_received_total", "Congestion notification packets received, and ignored.",
		func(c *nic.Counters) uint64 { return c.Drops[transport.DropCNP] }},
	{"retries", "softroce_retries_total", "Transport retries used, after NAKs, missing responses and local ACK timeouts.",
		func(c *nic.Counters) uint64 { return c.Retries }},
	{"retransmitted", "softroce_retransmitted_packets_total", "Retransmitted packets.",
		func(c *nic.Counters) uint64 { return c.Retransmitted }},
	{"local_ack_timeout_err", "node_infiniband_local_ack_timeout_errors_total", "Expirations of the local ACK timer.",
		func(c *nic.Counters) uint64 { return c.LocalACKTimeout }},
	{"roce_adp_retrans", "node_infiniband_roce_adp_retrans_total", "Retransmissions after recent losses, before the local ACK timer expired.",
		func(c *nic.Counters) uint64 { return c.AdaptiveRetransmissions }},
	{"packet_seq_err", "node_infiniband_packet_sequence_errors_total", "NAKs of sequence errors received.",
		func(c *nic.Counters) uint64 { return c.PacketSeqErr }},
	{"implied_nak_seq_err", "node_infiniband_implied_nak_seq_errors_total", "READ or atomic responses found missing by a later reply.",
		func(c *nic.Counters) uint64 { return c.ImpliedNAK }},
	{"rnr_nak_retry_err", "node_infiniband_rnr_nak_retry_packets_received_total", "RNR NAKs received.",
		func(c *nic.Counters) uint64 { return c.RNRReceived }},
	{"rnr_nak_sent", "softroce_rnr_naks_sent_total", "RNR NAKs sent.",
		func(c *nic.Counters) uint64 { return c.RNRSent }},
	{"retry_exceeded_err", "softroce_retries_exceeded_total", "QPs that failed because the transport retry counter ran out.",
		func(c *nic.Counters) uint64 { return c.RetryExceeded }},
	{"rnr_retry_exceeded_err", "softroce_rnr_retries_exceeded_total", "QPs that failed because the RNR retry counter ran out.",
		func(c *nic.Counters) uint64 { return c.RNRRetryExceeded }},
	{"duplicate_request", "node_infiniband_duplicate_requests_packets_total", "Request packets received again.",
		func(c *nic.Counters) uint64 { return c.DuplicateRequest }},
	{"out_of_sequence", "node_infiniband_out_of_sequence_packets_received_total", "Request packets ahead of the expected PSN.",
		func(c *nic.Counters) uint64 { return c.OutOfSequence }},
	{"out_of_buffer", "node_infiniband_out_of_buffer_drops_total", "Messages that found no receive posted.",
		func(c *nic.Counters) uint64 { return c.OutOfBuffer }},
	{"req_remote_invalid_request", "node_infiniband_req_remote_invalid_request_errors_total", "Requests that the peer called invalid.",
		func(c *nic.Counters) uint64 { return c.ReqRemoteInvalid }},
	{"req_remote_access_errors", "node_infiniband_req_remote_access_errors_total", "Requests that failed the access check of the peer.",
		func(c *nic.Counters) uint64 { return c.ReqRemoteAccess }},
	{"tx_overlong", "softroce_tx_overlong_datagrams_total", "UD messages longer than the port's MTU, which were not sent.",
		func(c *nic.Counters) uint64 { return c.TxOverlong }},
	{"req_cqe_error", "node_infiniband_req_cqes_errors_total", "Send work requests that completed in error.",
		func(c *nic.Counters) uint64 { return c.ReqCQEError }},
	{"req_cqe_flush_error", "node_infiniband_req_cqes_flush_errors_total", "Send work requests flushed.",
		func(c *nic.Counters) uint64 { return c.ReqCQEFlush }},
	{"resp_local_length_error", "node_infiniband_resp_local_length_errors_total", "Messages longer than their receive buffer.",
		func(c *nic.Counters) uint64 { return c.RespLocalLength }},
	{"resp_remote_access_errors", "node_infiniband_resp_remote_access_errors_total", "Requests that failed the access check.",
		func(c *nic.Counters) uint64 { return c.RespRemoteAccess }},
	{"resp_cqe_error", "node_infiniband_resp_cqes_errors_total", "Receives that completed in error.",
		func(c *nic.Counters) uint64 { return c.RespCQEError }},
	{"resp_cqe_flush_error", "node_infiniband_resp_cqes_flush_errors_total", "Receives flushed.",
		func(c *nic.Counters) uint64 { return c.RespCQEFlush }},
	{"rx_icrc_encapsulated", "node_infiniband_rx_icrc_encapsulated_errors_total", "Packets with a wrong ICRC.",
		func(c *nic.Counters) uint64 { return c.Drops[transport.DropICRC] }},
}

// NAKCodes are the names of the NAK codes, from 0 (IBTA 9.7.5.2.1).
var NAKCodes = [...]string{
	"psn_sequence_error", "invalid_request", "remote_access_error", "remote_operational_error", "invalid_rd_request",
}

// A Labeled is one value of a counter with a label.
type Labeled struct {
	Label string
	Value uint64
}

// Opcodes returns the values that are not 0 of a counter by opcode.
func Opcodes(counts *[256]uint64) (l []Labeled) {
	for i, n := range counts {
		if n > 0 {
			l = append(l, Labeled{opcodeName(packet.Opcode(i)), n})
		}
	}
	return l
}

func opcodeName(o packet.Opcode) string {
	if in := o.Info(); in.Valid {
		return in.Name
	}
	return fmt.Sprintf("%#02x", uint8(o))
}

// NAKs returns the values of a counter by NAK code.
func NAKs(counts *[len(NAKCodes)]uint64) (l []Labeled) {
	for i, n := range counts {
		l = append(l, Labeled{NAKCodes[i], n})
	}
	return l
}
