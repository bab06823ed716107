package nic

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"softroce/wire"
)

// A PDInfo is a protection domain.
type PDInfo struct {
	Owner
	Users int `json:"users"` // MRs, windows, QPs, SRQs and AHs
}

// An MWInfo is a memory window, and what it grants while it is bound. Its R_Key is not shown.
type MWInfo struct {
	Owner
	Type   string `json:"type"` // "1" or "2B"
	Bound  bool   `json:"bound"`
	QPN    uint32 `json:"lqpn,omitempty"` // type 2: who bound it
	IOVA   uint64 `json:"iova"`
	Length uint64 `json:"length"`
	Access string `json:"access,omitempty"`
}

// An SRQInfo is a shared receive queue.
type SRQInfo struct {
	Owner
	Entries int    `json:"entries"`
	MaxSGE  int    `json:"max_sge"`
	Posted  int    `json:"posted"`
	Limit   int    `json:"limit"` // 0: not armed
	Users   int    `json:"users"` // QPs
	Number  uint32 `json:"srqn"`  // XRC: how peers name it
}

// An AHInfo is an address handle.
type AHInfo struct {
	Owner
	Src       netip.Addr `json:"src"`
	Dst       netip.Addr `json:"dst"`
	VLAN      uint16     `json:"vlan,omitempty"`
	TClass    uint8      `json:"tclass"`
	HopLimit  uint8      `json:"hop_limit"`
	FlowLabel uint32     `json:"flow_label"`
}

// A GroupInfo is a multicast group and the queue pairs that are attached to it.
type GroupInfo struct {
	Addr netip.Addr `json:"group"`
	QPs  []uint32   `json:"lqpns"`
}

// A FaultInfo is a rule of the device's fault program and what it has done.
type FaultInfo struct {
	Line       int    `json:"line"` // in its file
	Rule       string `json:"rule"`
	Matched    uint64 `json:"matched"`    // packets that met its conditions
	Acted      uint64 `json:"acted"`      // of these, those that it picked
	Overflowed uint64 `json:"overflowed"` // of these, those dropped because too many were held
}

// listOthers adds to s what c has beside queue pairs, regions and completion queues.
func (c *Context) listOthers(s *Snapshot, o Owner) {
	for _, p := range c.pds {
		s.PDs = append(s.PDs, PDInfo{o, p.users})
	}
	for _, m := range c.mws {
		i := MWInfo{Owner: o, Type: m.window.Type().String(), QPN: m.window.QPN()}
		if r := m.window.Bound(); r != nil {
			i.Bound, i.IOVA, i.Length, i.Access = true, r.IOVA, r.Length, r.Access.String()
		}
		s.MWs = append(s.MWs, i)
	}
	for _, m := range c.dms {
		s.DMs = append(s.DMs, DMInfo{o, m.Length(), m.users})
	}
	for _, q := range c.srqs {
		r := q.ring
		posted := int(min(r.loadProducer()-r.taken, r.size()))
		s.SRQs = append(s.SRQs, SRQInfo{o, int(r.size()), r.maxSGE, posted, r.limit, q.users, q.num})
	}
	for _, n := range slices.Sorted(maps.Keys(c.ahs)) {
		p := c.ahs[n].path
		s.AHs = append(s.AHs, AHInfo{o, p.Src, p.Dst, p.VLAN, p.TClass, p.HopLimit, p.FlowLabel})
	}
}

// groupInfos lists the multicast groups by their addresses.
func (d *Device) groupInfos() (l []GroupInfo) {
	for gid, g := range d.groups {
		i := GroupInfo{Addr: gid.Addr()}
		for _, q := range g.qps {
			i.QPs = append(i.QPs, q.qpn)
		}
		l = append(l, i)
	}
	slices.SortFunc(l, func(a, b GroupInfo) int { return strings.Compare(a.Addr.String(), b.Addr.String()) })
	return l
}

// faultInfos tells what a fault program around the link has done.
func (d *Device) faultInfos() (l []FaultInfo) {
	f, ok := d.link.(*wire.FaultLink)
	if !ok {
		return nil
	}
	for _, c := range f.RuleCounters() {
		l = append(l, FaultInfo{c.Rule.Line, c.Rule.String(), c.Matched, c.Acted, c.Overflowed})
	}
	return l
}
