package nic

import (
	"net/netip"

	"softroce/internal/ib"
)

// A Snapshot is what a device holds, for people and programs to look at.
type Snapshot struct {
	Name      string        `json:"name"`
	GUID      uint64        `json:"guid"`
	Netdev    string        `json:"netdev"`
	PortState ib.PortState  `json:"port_state"`
	ActiveMTU int           `json:"active_mtu"`
	GIDs      []GIDEntry    `json:"gids"`
	PKeys     []uint16      `json:"pkeys"` // by index; 0: none
	Contexts  []ContextInfo `json:"contexts"`
	QPs       []QPInfo      `json:"qps"`
	MRs       []MRInfo      `json:"mrs"`
	CQs       []CQInfo      `json:"cqs"`
	PDs       []PDInfo      `json:"pds"`
	MWs       []MWInfo      `json:"mws"`
	DMs       []DMInfo      `json:"dms"`
	SRQs      []SRQInfo     `json:"srqs"`
	AHs       []AHInfo      `json:"ahs"`
	Groups    []GroupInfo   `json:"groups"`
	Faults    []FaultInfo   `json:"faults"` // the rules of the fault program, in their order
	LinkError string        `json:"link_error,omitempty"`
	Counters  Counters      `json:"counters"`
}

// Owner says whose an object is.
type Owner struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
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

// A QPInfo is a queue pair. Src, Dst and SrcPort are those of its path, once it has one.
type QPInfo struct {
	Owner
	QPN         uint32     `json:"lqpn"`
	RemoteQPN   uint32     `json:"rqpn"`
	Type        string     `json:"type"`
	State       string     `json:"state"`
	Src         netip.Addr `json:"src,omitzero"`
	Dst         netip.Addr `json:"dst,omitzero"`
	SrcPort     uint16     `json:"src_port,omitempty"`
	VLAN        uint16     `json:"vlan,omitempty"`
	PathMTU     int        `json:"path_mtu"`
	PKey        uint16     `json:"pkey"`
	SQPSN       uint32     `json:"sq_psn"` // next to send
	RQPSN       uint32     `json:"rq_psn"` // next expected
	SendPosted  int        `json:"send_posted"`
	RecvPosted  int        `json:"recv_posted"`
	Caps        Caps       `json:"caps"`
	SharedQueue bool       `json:"srq"`
}

// An MRInfo is a memory region. Its R_Key is not shown: it is a secret of its owner.
type MRInfo struct {
	Owner
	IOVA   uint64 `json:"iova"`
	Length uint64 `json:"length"`
	Access string `json:"access"`
}

// A CQInfo is a completion queue.
type CQInfo struct {
	Owner
	Entries  int  `json:"entries"`
	Waiting  int  `json:"waiting"` // not polled yet, as far as the client's word goes
	Users    int  `json:"users"`
	Overrun  bool `json:"overrun"`
	Notified int  `json:"notified"` // completion events given
}

// Snapshot returns what the device holds.
func (d *Device) Snapshot() Snapshot {
	port := d.QueryPort()
	s := Snapshot{
		Name: d.name, GUID: d.guid, Netdev: d.iface.Name(), PortState: port.State, ActiveMTU: port.ActiveMTU,
		GIDs: d.GIDs(), PKeys: d.PKeys(), Counters: d.Counters(),
	}
	if d.linkError != nil {
		s.LinkError = d.linkError.Error()
	}
	for _, c := range d.contexts {
		o := Owner{c.opt.PID, c.opt.Comm}
		n := &c.count
		s.Contexts = append(s.Contexts, ContextInfo{o, n.pds, n.qps, n.cqs, n.mrs, n.mws, n.srqs, n.ahs, n.xrcds,
			c.registered, c.ringBytes, len(c.dms), c.deviceMemory})
		c.listOthers(&s, o)
		for _, q := range c.qps {
			s.QPs = append(s.QPs, q.info(o))
		}
		for _, m := range c.mrs {
			r := m.region
			s.MRs = append(s.MRs, MRInfo{o, r.IOVA, r.Length, r.Access.String()})
		}
		for _, q := range c.cqs {
			s.CQs = append(s.CQs, q.info(o))
		}
	}
	s.Groups, s.Faults = d.groupInfos(), d.faultInfos()
	return s
}

func (q *QP) info(o Owner) QPInfo {
	a := q.t.Query()
	i := QPInfo{
		Owner: o, QPN: q.qpn, RemoteQPN: a.DestQPN, Type: q.init.Type.String(), State: a.State.String(),
		PathMTU: a.PathMTU, PKey: a.PKey, SQPSN: a.SQPSN, RQPSN: a.RQPSN, SendPosted: int(q.sq.loadProducer() - q.sqDone),
		Caps: q.init.Caps, SharedQueue: q.recv.shared,
	}
	if a.State != ib.QPSReset && !q.recv.shared {
		i.RecvPosted = int(min(q.recv.ring.loadProducer()-q.recv.ring.taken, q.recv.ring.size()))
	}
	if p := q.path; p != nil {
		i.Src, i.Dst, i.SrcPort, i.VLAN = p.Src, p.Dst, p.SrcPort, p.VLAN
	}
	return i
}

func (q *CQ) info(o Owner) CQInfo {
	return CQInfo{
		Owner: o, Entries: q.Entries(), Waiting: int(min(q.published-q.ring.loadConsumer(), q.ring.size())),
		Users: q.users, Overrun: q.overrun, Notified: int(q.counted),
	}
}
