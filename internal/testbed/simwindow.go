package testbed

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// AllocMW implements NIC.
func (n *simNIC) AllocMW(name string, t ib.MWType, pdName string) (uint32, error) {
	pd, err := n.pd(pdName)
	if err != nil {
		return 0, err
	}
	m, err := n.client.Context.AllocMW(pd, t)
	if err != nil {
		return 0, err
	}
	n.mws[name] = &simMW{m, t, m.RKey()}
	return m.RKey(), nil
}

// DeallocMW implements NIC.
func (n *simNIC) DeallocMW(name string) error {
	m, ok := n.mws[name]
	if !ok {
		return fmt.Errorf("no memory window %q on this NIC", name)
	}
	return n.client.Context.DeallocMW(m.mw)
}

type simMW struct {
	mw   *nic.MW
	typ  ib.MWType
	rkey uint32 // the program's R_Key, ahead of the NIC's until a bind is executed
}

// PostBind implements NIC. For a type 1 window the library chooses the new R_Key.
func (n *simNIC) PostBind(qp, mw, _ string, w *transport.SendWR) (uint32, error) {
	m, ok := n.mws[mw]
	if !ok {
		return 0, fmt.Errorf("no memory window %q on this NIC", mw)
	}
	if m.typ == ib.MWType1 {
		w.RKey = m.rkey&^0xff | (m.rkey+1)&0xff
	}
	if err := n.PostSend(qp, w); err != nil {
		return 0, err
	}
	m.rkey = w.RKey
	return w.RKey, nil
}

// OpenXRCD implements NIC.
func (n *simNIC) OpenXRCD(name string) error {
	x, err := n.client.Context.OpenXRCD(nic.XRCDKey{}, true, false)
	if err == nil {
		n.xrcds[name] = x
	}
	return err
}

// Attach implements NIC.
func (n *simNIC) Attach(name string, group nic.GID, detach bool) error {
	q, err := n.queue(name)
	if err != nil {
		return err
	}
	if detach {
		return n.client.Context.DetachMcast(q.QP.QP, group)
	}
	return n.client.Context.AttachMcast(q.QP.QP, group)
}
