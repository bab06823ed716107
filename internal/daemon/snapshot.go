package daemon

import (
	"slices"

	"softroce/attach"
	"softroce/cm"
	"softroce/internal/metrics"
	"softroce/nic"
	"softroce/wire"
)

// Snapshot is the state of a daemon at one moment. Its JSON form is the reply to a snapshot request
// on the control socket.
type Snapshot struct {
	PID     int                  `json:"pid"`
	Release string               `json:"release"`
	Clients []attach.ClientInfo  `json:"clients"`
	Devices []Device             `json:"devices"`
	Engines []nic.EngineCounters `json:"engines"`
	CMIDs   []cm.IDInfo          `json:"cm_ids"`
	Users   []attach.UserInfo    `json:"users"`
	Ports   []wire.SwitchPort    `json:"ports"` // of the fabric's network, if there is one
}

// Device is a NIC. Its counters are named as in package metrics.
type Device struct {
	nic.Snapshot
	GIDs     []GID    `json:"gids"`
	Counters Counters `json:"counters"`
}

// GID is a row of a GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`  // eight groups of four hexadecimal digits
	Addr   string `json:"addr"` // the IP address of the GID
	Netdev string `json:"netdev,omitempty"`
	VLAN   int    `json:"vlan,omitempty"`
	RoCEv1 bool   `json:"roce_v1,omitempty"`
}

// Counters are the counters of a NIC. Opcodes, drop reasons and NAK codes that have not occurred
// are omitted.
type Counters struct {
	Values       map[string]uint64 `json:"values"`
	RxOpcodes    map[string]uint64 `json:"rx_opcodes"`
	TxOpcodes    map[string]uint64 `json:"tx_opcodes"`
	Drops        map[string]uint64 `json:"drops"`
	NAKsSent     map[string]uint64 `json:"naks_sent"`
	NAKsReceived map[string]uint64 `json:"naks_received"`
}

// NewSnapshot builds a Snapshot from those of the attach server and of its engines.
func NewSnapshot(s attach.Snapshot, engines []nic.EngineCounters) Snapshot {
	out := Snapshot{PID: s.PID, Release: s.Release, Clients: s.Clients, Engines: engines, CMIDs: s.CMIDs, Users: s.Users}
	for _, d := range s.Devices {
		v := Device{Snapshot: d, Counters: count(&d.Counters)}
		for _, g := range d.GIDs {
			v.GIDs = append(v.GIDs, GID{g.Index, g.GID.String(), g.GID.Addr().String(), g.Netdev, g.VLAN, g.RoCEv1})
		}
		out.Devices = append(out.Devices, v)
	}
	return out
}

// VisibleTo returns the part of s that user uid may see.
func (s Snapshot) VisibleTo(uid uint32) Snapshot {
	s.Devices = slices.Clone(s.Devices)
	for i := range s.Devices {
		s.Devices[i].Snapshot = s.Devices[i].Snapshot.VisibleTo(uid)
	}
	return s
}

func count(c *nic.Counters) Counters {
	out := Counters{
		Values: map[string]uint64{}, Drops: map[string]uint64{},
		RxOpcodes: byLabel(metrics.Opcodes(&c.RxOpcode)), TxOpcodes: byLabel(metrics.Opcodes(&c.TxOpcode)),
		NAKsSent: byLabel(metrics.NAKs(&c.NAKSent)), NAKsReceived: byLabel(metrics.NAKs(&c.NAKReceived)),
	}
	for _, k := range metrics.Counters {
		out.Values[k.Name] = k.Value(c)
	}
	for _, d := range c.Dropped() {
		out.Drops[d.Reason] = d.Count
	}
	return out
}

func byLabel(l []metrics.Labeled) map[string]uint64 {
	m := map[string]uint64{}
	for _, v := range l {
		if v.Value > 0 {
			m[v.Label] = v.Value
		}
	}
	return m
}
