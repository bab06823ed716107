package cm

import (
	"fmt"
	"net/netip"
)

// A Field is a field of a message as a capture shows it: its name and its value, a number, text or
// an address.
type Field struct {
	Name  string
	Value any
}

// A Hex is a number of up to 32 bits that prints in hexadecimal, a Hex64 one of 64.
type (
	Hex   uint32
	Hex64 uint64
)

func (h Hex) String() string   { return fmt.Sprintf("%#x", uint32(h)) }
func (h Hex64) String() string { return fmt.Sprintf("%#x", uint64(h)) }

// Describe returns the fields of a message that matter to a reader of captures: identifiers,
// service, queue pairs, reasons, addresses.
func Describe(m Message) []Field {
	switch m := m.(type) {
	case *REQ:
		return m.describe()
	case *REP:
		return append(ids(m.LocalID, m.RemoteID), Field{"qpn", Hex(m.LocalQPN)}, Field{"psn", m.StartingPSN},
			Field{"responder_resources", m.ResponderResources}, Field{"initiator_depth", m.InitiatorDepth},
			Field{"rnr_retry", m.RNRRetryCount}, Field{"guid", Hex64(m.LocalGUID)})
	case *MRA:
		return append(ids(m.LocalID, m.RemoteID), Field{"about", about(m.About, "LAP")}, Field{"service_timeout", m.ServiceTimeout})
	case *REJ:
		return append(ids(m.LocalID, m.RemoteID), Field{"about", about(m.About, "other")}, Field{"reason", uint16(m.Reason)},
			Field{"reason_name", m.Reason.String()})
	case *RTU:
		return ids(m.LocalID, m.RemoteID)
	case *DREQ:
		return append(ids(m.LocalID, m.RemoteID), Field{"remote_qpn", Hex(m.RemoteQPN)})
	case *DREP:
		return ids(m.LocalID, m.RemoteID)
	case *SIDRREQ:
		return append([]Field{{"request_id", Hex(m.RequestID)}}, service(m.ServiceID, m.Private[:])...)
	case *SIDRREP:
		return append([]Field{{"request_id", Hex(m.RequestID)}, {"status", uint8(m.Status)}, {"qpn", Hex(m.QPN)},
			{"qkey", Hex(m.QKey)}}, service(m.ServiceID, nil)...)
	case *LAP:
		return append(ids(m.LocalID, m.RemoteID), Field{"remote_qpn", Hex(m.RemoteQPN)})
	case *APR:
		return append(ids(m.LocalID, m.RemoteID), Field{"status", m.Status})
	}
	return nil
}

func (m *REQ) describe() []Field {
	f := append([]Field{{"local_id", Hex(m.LocalID)}}, service(m.ServiceID, m.Private[:])...)
	return append(f, Field{"qpn", Hex(m.LocalQPN)}, Field{"psn", m.StartingPSN},
		Field{"responder_resources", m.ResponderResources}, Field{"initiator_depth", m.InitiatorDepth},
		Field{"retry", m.RetryCount}, Field{"rnr_retry", m.RNRRetryCount}, Field{"path_mtu", m.PathMTU},
		Field{"cm_retries", m.MaxCMRetries}, Field{"response_time", m.RemoteResponseTime},
		Field{"ack_timeout", m.Primary.ACKTimeout}, Field{"guid", Hex64(m.LocalGUID)},
		Field{"local_gid", netip.AddrFrom16(m.Primary.LocalGID).Unmap()},
		Field{"remote_gid", netip.AddrFrom16(m.Primary.RemoteGID).Unmap()})
}

func ids(local, remote uint32) []Field {
	return []Field{{"local_id", Hex(local)}, {"remote_id", Hex(remote)}}
}

func about(n uint8, third string) string {
	switch n {
	case AboutREQ:
		return "REQ"
	case AboutREP:
		return "REP"
	}
	return third
}

// service describes a service ID and, for the RDMA IP CM service, the addresses in the private
// data.
func service(id uint64, private []byte) []Field {
	f := []Field{{"service_id", Hex64(id)}}
	ps, port, ok := ParseServiceID(id)
	if !ok {
		return f
	}
	f = append(f, Field{"port_space", ps.String()}, Field{"port", port})
	if h, err := ParseIPHeader(private); err == nil {
		f = append(f, Field{"src", netip.AddrPortFrom(h.Src, h.SrcPort)}, Field{"dst", netip.AddrPortFrom(h.Dst, port)})
	}
	return f
}
