package nic

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
)

// A Snapshot is the state of a device, as "softroce show" prints it.
type Snapshot struct {
	Name      string        `json:"name"`
	GUID      uint64        `json:"guid"`
	Netdev    string        `json:"netdev"`
	Link      string        `json:"link,omitempty"`
	Engines   int           `json:"engines"` // that drive it
	PortState ib.PortState  `json:"port_state"`
	Port2     ib.PortState  `json:"port2_state,omitempty"` // 0: there is one port
	ActiveMTU int           `json:"active_mtu"`
	GIDs      []GIDEntry    `json:"gids"`
	PKeys     []uint16      `json:"pkeys"` // by index; 0: no key
	Contexts  []ContextInfo `json:"contexts"`
	QPs       []QPInfo      `json:"qps"`
	Ended     []EndedQP     `json:"ended_qps"`
	MRs       []MRInfo      `json:"mrs"`
	CQs       []CQInfo      `json:"cqs"`
	PDs       []PDInfo      `json:"pds"`
	MWs       []MWInfo      `json:"mws"`
	DMs       []DMInfo      `json:"dms"`
	SRQs      []SRQInfo     `json:"srqs"`
	AHs       []AHInfo      `json:"ahs"`
	Groups    []GroupInfo   `json:"groups"`
	Faults    []FaultInfo   `json:"faults"` // the rules of the fault program, in order
	LinkError string        `json:"link_error,omitempty"`
	Counters  Counters      `json:"counters"`

	Congestion CongestionInfo `json:"congestion"`

	Identity Identity `json:"-"`
}

// An Owner is the client that an object belongs to.
type Owner struct {
	Client uint32 `json:"client"`
	PID    int    `json:"pid"`
	Group  int    `json:"pgid,omitempty"` // its process group when it attached
	UID    uint32 `json:"uid"`
	Comm   string `json:"comm"`

	// Hidden marks an object whose secrets were replaced by zeros: see Snapshot.VisibleTo.
	Hidden bool `json:"hidden,omitempty"`
}

// A ContextInfo is a client.
type ContextInfo struct {
	Owner
	PDs             int    `json:"pds"`
	QPs             int    `json:"qps"`
	CQs             int    `json:"cqs"`
	MRs             int    `json:"mrs"`
	MWs             int    `json:"mws"`
	SRQs            int    `json:"srqs"`
	AHs             int    `json:"ahs"`
	XRCDs           int    `json:"xrcds"`
	RegisteredBytes uint64 `json:"registered_bytes"`
	RingBytes       uint64 `json:"ring_bytes"`
	DMs             int    `json:"dms"`
	DeviceMemory    uint64 `json:"device_memory"` // bytes
}

// A PathInfo is the addresses of a path.
type PathInfo struct {
	Src  netip.Addr `json:"src,omitzero"`
	Dst  netip.Addr `json:"dst,omitzero"`
	VLAN uint16     `json:"vlan,omitempty"`

	RoCEv1 bool `json:"roce_v1,omitempty"` // packets are of RoCE v1
}

// pathInfo returns the addresses of p.
func pathInfo(p *wire.Path) PathInfo {
	return PathInfo{p.Src, p.Dst, p.VLAN, p.Network == packet.RoCEv1}
}

// A QPInfo is a queue pair, with its path if it has one.
type QPInfo struct {
	Owner
	QPN       uint32 `json:"lqpn"`
	RemoteQPN uint32 `json:"rqpn"`
	Type      string `json:"type"`
	State     string `json:"state"`
	Engine    int    `json:"engine"` // number of the one that drives it
	PathInfo
	SrcPort    uint16 `json:"src_port,omitempty"`
	PathMTU    int    `json:"path_mtu"`
	PKey       uint16 `json:"pkey"`
	SQPSN      uint32 `json:"sq_psn"` // next to send
	RQPSN      uint32 `json:"rq_psn"` // next expected
	SendPosted int    `json:"send_posted"`
	RecvPosted int    `json:"recv_posted"`
	Caps       Caps   `json:"caps"`
	PD         uint32 `json:"pdn,omitempty"` // ID of the object; an XRC target has none
	SendCQ     uint32 `json:"send_cqn,omitempty"`
	RecvCQ     uint32 `json:"recv_cqn,omitempty"`
	SRQ        uint32 `json:"srqn,omitempty"`
	Rate       int64  `json:"rate,omitempty"` // b/s, while congestion control limits it
	transport.QPCounters

	Failure *transport.Failure `json:"failure,omitempty"` // in ERR and SQE
	Stall   *transport.Stall   `json:"stall,omitempty"`   // in RTS and SQD
}

// An Address is an address in the memory of a client. In JSON it is a string, because numbers there
// may have 53 bits.
type Address uint64

func (a Address) String() string { return fmt.Sprintf("%#x", uint64(a)) }

// MarshalText implements encoding.TextMarshaler.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Address) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 0, 64)
	*a = Address(v)
	return err
}

// An MRInfo is a memory region. Its R_Key is a secret of its owner and not shown.
type MRInfo struct {
	Owner
	ID     uint32  `json:"mrn"`
	PD     uint32  `json:"pdn"`
	DM     uint32  `json:"dmn,omitempty"` // of which it is a range
	IOVA   Address `json:"iova"`
	Length uint64  `json:"length"`
	Access string  `json:"access"`

	Backing  string `json:"backing"`            // how it is accessed
	Unshared string `json:"unshared,omitempty"` // why it is not mapped
}

// A CQInfo is a completion queue.
type CQInfo struct {
	Owner
	ID       uint32 `json:"cqn"`
	Entries  int    `json:"entries"`
	Waiting  int    `json:"waiting"` // not polled yet, by the client's consumer index
	Users    int    `json:"users"`
	Overrun  bool   `json:"overrun"`
	Notified int    `json:"notified"` // completion events so far
}

// A PDInfo is a protection domain.
type PDInfo struct {
	Owner
	ID    uint32 `json:"pdn"`
	Users int    `json:"users"` // MRs, MWs, QPs, SRQs and AHs
}

// An MWInfo is a memory window, and what it grants if it is bound. Its R_Key is not shown.
type MWInfo struct {
	Owner
	ID     uint32  `json:"mwn"`
	PD     uint32  `json:"pdn"`
	Type   string  `json:"type"` // "1" or "2B"
	Bound  bool    `json:"bound"`
	QPN    uint32  `json:"lqpn,omitempty"` // type 2: the queue pair that bound it
	IOVA   Address `json:"iova"`
	Length uint64  `json:"length"`
	Access string  `json:"access,omitempty"`
}

// An SRQInfo is a shared receive queue.
type SRQInfo struct {
	Owner
	ID      uint32 `json:"srqn"`
	PD      uint32 `json:"pdn"`
	CQ      uint32 `json:"cqn,omitempty"` // XRC: for its completions
	Entries int    `json:"entries"`
	MaxSGE  int    `json:"max_sge"`
	Posted  int    `json:"posted"`
	Limit   int    `json:"limit"`              // 0: not armed
	Users   int    `json:"users"`              // QPs
	Number  uint32 `json:"xrc_srqn,omitempty"` // XRC: its number in packets
}

// An AHInfo is an address handle.
type AHInfo struct {
	Owner
	ID uint32 `json:"ahn"`
	PD uint32 `json:"pdn"`
	PathInfo
	TClass    uint8  `json:"tclass"`
	HopLimit  uint8  `json:"hop_limit"`
	FlowLabel uint32 `json:"flow_label"`
	order     uint64 // by context and number
}

// A CongestionInfo is the congestion control of the device.
type CongestionInfo struct {
	Algorithm string             `json:"algorithm"`
	Params    []congestion.Value `json:"params"`
}

// A GroupInfo is a multicast group and the queue pairs that are attached to it.
type GroupInfo struct {
	Addr netip.Addr `json:"group"`
	QPs  []uint32   `json:"lqpns"`
}

// A FaultInfo is a rule of the device's fault program and its counters.
type FaultInfo struct {
	ID         int    `json:"id"`
	Line       int    `json:"line"` // in its file, or in what was added
	Rule       string `json:"rule"`
	Matched    uint64 `json:"matched"`    // packets that met its conditions
	Acted      uint64 `json:"acted"`      // of these, those that it acted on
	Overflowed uint64 `json:"overflowed"` // of these, those dropped because too many were delayed
}

// VisibleTo returns the part of s that user uid may see. Of other users' objects it hides the PSNs,
// with which a forged packet would be accepted, and the addresses in their memory.
func (s Snapshot) VisibleTo(uid uint32) Snapshot {
	s.QPs, s.MRs, s.MWs = slices.Clone(s.QPs), slices.Clone(s.MRs), slices.Clone(s.MWs)
	s.Ended = slices.Clone(s.Ended)
	for i := range s.QPs {
		s.QPs[i].hide(uid)
	}
	for i := range s.Ended {
		s.Ended[i].hide(uid)
	}
	for i := range s.MRs {
		if m := &s.MRs[i]; m.UID != uid {
			m.Hidden, m.IOVA = true, 0
		}
	}
	for i := range s.MWs {
		if m := &s.MWs[i]; m.UID != uid {
			m.Hidden, m.IOVA = true, 0
		}
	}
	return s
}

// hide removes the secrets of a queue pair of another user.
func (q *QPInfo) hide(uid uint32) {
	if q.UID == uid {
		return
	}
	q.Hidden, q.SQPSN, q.RQPSN = true, 0, 0
	if q.Failure != nil {
		f := *q.Failure
		f.PSN, f.Address, f.Key = 0, 0, 0
		q.Failure = &f
	}
	if q.Stall != nil {
		s := *q.Stall
		s.PSN = 0
		q.Stall = &s
	}
}
