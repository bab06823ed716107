package metrics

import (
	"slices"
	"strings"

	"softroce/nic"
)

// An hwCounter is a file of hw_counters in sysfs.
type hwCounter struct {
	file    string
	counter string // the name in Counters; "": softroce does not count this, and the file reads 0
}

// hwCounters are the files of the drivers, in the order of their tables: basic_q_cnts to
// ext_ppcnt_cnts of mlx5_ib, rxe_counter_descs of rdma_rxe in Linux 6.1.
var hwCounters = map[nic.CounterSet][]hwCounter{
	nic.CountersMLX5: {
		{"rx_write_requests", "rx_write_requests"},
		{"rx_read_requests", "rx_read_requests"},
		{"rx_atomic_requests", "rx_atomic_requests"},
		{"out_of_buffer", "out_of_buffer"},
		{"out_of_sequence", "out_of_sequence"},
		{"duplicate_request", "duplicate_request"},
		{"rnr_nak_retry_err", "rnr_nak_retry_err"},
		{"packet_seq_err", "packet_seq_err"},
		{"implied_nak_seq_err", "implied_nak_seq_err"},
		{"local_ack_timeout_err", "local_ack_timeout_err"},
		{"resp_local_length_error", "resp_local_length_error"},
		{"resp_cqe_error", "resp_cqe_error"},
		{"req_cqe_error", "req_cqe_error"},
		{"req_remote_invalid_request", "req_remote_invalid_request"},
		{"req_remote_access_errors", "req_remote_access_errors"},
		{"resp_remote_access_errors", "resp_remote_access_errors"},
		{"resp_cqe_flush_error", "resp_cqe_flush_error"},
		{"req_cqe_flush_error", "req_cqe_flush_error"},
		{"roce_adp_retrans", "roce_adp_retrans"},
		{"roce_adp_retrans_to", ""},
		{"roce_slow_restart", ""},
		{"roce_slow_restart_cnps", ""},
		{"roce_slow_restart_trans", ""},
		{"rp_cnp_ignored", "rp_cnp_ignored"},
		{"rp_cnp_handled", "rp_cnp_handled"},
		{"np_ecn_marked_roce_packets", "np_ecn_marked_roce_packets"},
		{"np_cnp_sent", "np_cnp_sent"},
		{"rx_icrc_encapsulated", "rx_icrc_encapsulated"},
	},
	nic.CountersRXE: {
		{"sent_pkts", "port_xmit_packets"},
		{"rcvd_pkts", "port_rcv_packets"},
		{"duplicate_request", "duplicate_request"},
		{"out_of_seq_request", "out_of_sequence"},
		{"rcvd_rnr_err", "rnr_nak_retry_err"},
		{"send_rnr_err", "rnr_nak_sent"},
		{"rcvd_seq_err", "packet_seq_err"},
		{"ack_deferred", ""},
		{"retry_exceeded_err", "retry_exceeded_err"},
		{"retry_rnr_exceeded_err", "rnr_retry_exceeded_err"},
		{"completer_retry_err", "retries"},
		{"send_err", "port_xmit_discards"},
		{"link_downed", "link_downed"},
		{"rdma_sends", "tx_send_requests"},
		{"rdma_recvs", "rx_send_requests"},
	},
}

// portCounters are the files of counters of every NIC, in the specification's order and units.
var portCounters = []hwCounter{
	{"port_xmit_data", "port_xmit_bytes"}, // in words of four bytes
	{"port_rcv_data", "port_rcv_bytes"},   // likewise
	{"port_xmit_packets", "port_xmit_packets"},
	{"port_rcv_packets", "port_rcv_packets"},
}

// mlx5PortCounters are the other files of counters of mlx5_ib, but for those that distinguish
// multicast.
var mlx5PortCounters = []hwCounter{
	{"symbol_error", ""},
	{"link_error_recovery", ""},
	{"link_downed", "link_downed"},
	{"port_rcv_errors", ""},
	{"port_rcv_remote_physical_errors", ""},
	{"port_rcv_switch_relay_errors", ""},
	{"port_xmit_discards", "port_xmit_discards"},
	{"port_xmit_constraint_errors", ""},
	{"port_rcv_constraint_errors", ""},
	{"local_link_integrity_errors", ""},
	{"excessive_buffer_overrun_errors", ""},
	{"VL15_dropped", ""},
	{"port_xmit_wait", ""},
}

// PortCounters returns the files of counters of a NIC and their values.
func PortCounters(set nic.CounterSet, c *nic.Counters) (l []Labeled) {
	files := portCounters
	if set == nic.CountersMLX5 {
		files = slices.Concat(files, mlx5PortCounters)
	}
	for _, f := range files {
		m := Labeled{Label: f.file}
		if own := Find(f.counter); own != nil {
			m.Value = own.Value(c)
		}
		if strings.HasSuffix(f.file, "_data") {
			m.Value /= 4
		}
		l = append(l, m)
	}
	return l
}

// HWCounters returns the files of hw_counters of a NIC and their values: those of a driver, or, for
// the set "", all counters under their own names.
func HWCounters(set nic.CounterSet, c *nic.Counters) (l []Labeled) {
	own := make(map[string]uint64, len(Counters))
	for i := range Counters {
		m := &Counters[i]
		own[m.Name] = m.Value(c)
		if set == "" {
			l = append(l, Labeled{m.Name, own[m.Name]})
		}
	}
	for _, h := range hwCounters[set] {
		l = append(l, Labeled{h.file, own[h.counter]})
	}
	return l
}
