package testbed

import (
	"context"
	"fmt"
	"net/netip"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
)

// A simNIC is a simulated NIC and the verbs program on it. The program's rings are in heap memory;
// it writes them as a program in another process does.
type simNIC struct {
	client           *nictest.Client
	addr             netip.Addr
	pds              map[string]*nic.PD
	mrs              map[string]*simMR
	mws              map[string]*simMW
	xrcds            map[string]*nic.XRCD
	cqs              map[string]*nictest.CQ
	srqs             map[string]*nictest.SRQ
	qps              map[string]*simQP
	order            []*nictest.CQ // in order of creation
	events           []Event
	completionEvents []string // completion queues with a completion event
	killed           error
	nextVA           uint64
	ahs              uint32 // number of address handles created

	foreign  bool             // access all memory as that of another process
	process  *mrtable.Process // opened for the first foreign region
	mappings [][]byte
}

// Start addresses of regions, chosen far apart so that they are easy to distinguish.
const (
	firstVA  = 0x10000
	secondVA = 0x20010000 // for the second NIC
	vaSpace  = 0x100000
)

func newSimNIC(d *nic.Device, addr netip.Addr, va uint64) (*simNIC, error) {
	n := &simNIC{addr: addr, pds: map[string]*nic.PD{}, mrs: map[string]*simMR{}, mws: map[string]*simMW{}, xrcds: map[string]*nic.XRCD{},
		cqs: map[string]*nictest.CQ{}, srqs: map[string]*nictest.SRQ{}, qps: map[string]*simQP{}, nextVA: va}
	var err error
	n.client, err = nictest.Open(d, nic.ContextOptions{Events: n, Comm: "scenario"})
	return n, err
}

// AsyncEvent implements nic.EventSink.
func (n *simNIC) AsyncEvent(e nic.Event) {
	n.events = append(n.events, Event{Type: e.Type, Object: n.nameOf(e)})
}

func (n *simNIC) nameOf(e nic.Event) string {
	for name, q := range n.qps {
		if e.QP != nil && q.QP.QP == e.QP {
			return name
		}
	}
	for name, q := range n.cqs {
		if e.CQ != nil && q.CQ == e.CQ {
			return name
		}
	}
	for name, q := range n.srqs {
		if e.SRQ != nil && q.SRQ == e.SRQ {
			return name
		}
	}
	return ""
}

// Killed implements nic.EventSink.
func (n *simNIC) Killed(reason error) { n.killed = reason }

// Addr implements NIC.
func (n *simNIC) Addr() netip.Addr { return n.addr }

// GID implements NIC.
func (n *simNIC) GID(vlan uint16, network packet.Network) (int, error) {
	for _, e := range n.client.Device.GIDs() {
		if e.GID == nic.GIDOf(n.addr) && e.VLAN == int(vlan) && e.RoCEv1 == (network == packet.RoCEv1) {
			return e.Index, nil
		}
	}
	return 0, ErrNoVLAN
}

// pd returns the protection domain of a name and allocates it on first use.
func (n *simNIC) pd(name string) (*nic.PD, error) {
	if p := n.pds[name]; p != nil {
		return p, nil
	}
	p, err := n.client.Context.AllocPD()
	if err == nil {
		n.pds[name] = p
	}
	return p, err
}

// ModifyQP implements NIC.
func (n *simNIC) ModifyQP(name string, a nic.QPAttr, mask ib.QPAttrMask) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	if mask&ib.QPMaskAV != 0 {
		if a.AV.Path, err = n.client.Device.ResolvePath(context.Background(), &a.AV); err != nil {
			return err
		}
	}
	err = q.Modify(&a, mask)
	if err == nil {
		q.av = a.AV
	}
	return err
}

// State implements NIC.
func (n *simNIC) State(name string) (ib.QPState, error) {
	q, err := n.queue(name)
	if err != nil {
		return 0, err
	}
	return q.State(), nil
}

// Events implements NIC.
func (n *simNIC) Events() ([]Event, error) {
	e := n.events
	n.events = nil
	return e, n.killed
}

// Counters implements NIC.
func (n *simNIC) Counters() *nic.Counters {
	c := n.client.Device.Counters()
	return &c
}

func (n *simNIC) queue(name string) (*simQP, error) {
	if q, ok := n.qps[name]; ok {
		return q, nil
	}
	return nil, fmt.Errorf("no queue pair %q on this NIC", name)
}
