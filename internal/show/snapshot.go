// Package show tells what a running daemon holds: as JSON, and as text in the way of
// iproute2's rdma tool, a line of keys and values for each object.
package show

import (
	"fmt"

	"softroce/attach"
	"softroce/cm"
	"softroce/internal/metrics"
	"softroce/nic"
)

// Snapshot is everything at one moment. The daemon gives it as JSON to whoever asks.
type Snapshot struct {
	PID     int                  `json:"pid"`
	Release string               `json:"release"`
	Clients []attach.ClientInfo  `json:"clients"`
	Devices []Device             `json:"devices"`
	Engines []nic.EngineCounters `json:"engines"`
	CMIDs   []cm.IDInfo          `json:"cm_ids"`
}

// Device is a NIC. Its counters have the names that package metrics gives them.
type Device struct {
	nic.Snapshot
	GIDs     []GID    `json:"gids"`
	Counters Counters `json:"counters"`
}

// GID is a row of a GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`  // eight groups of four digits
	Addr   string `json:"addr"` // the IP address that it stands for
	Netdev string `json:"netdev,omitempty"`
	VLAN   int    `json:"vlan,omitempty"`
}

// Counters are those of a NIC. Kinds that never occurred are left out.
type Counters struct {
	Values       map[string]uint64 `json:"values"`
	RxOpcodes    map[string]uint64 `json:"rx_opcodes"`
	TxOpcodes    map[string]uint64 `json:"tx_opcodes"`
	Drops        map[string]uint64 `json:"drops"`
	NAKsSent     map[string]uint64 `json:"naks_sent"`
	NAKsReceived map[string]uint64 `json:"naks_received"`
}

// New makes a snapshot of what an attach server and its engines tell.
func New(s attach.Snapshot, engines []nic.EngineCounters) Snapshot {
	out := Snapshot{PID: s.PID, Release: s.Release, Clients: s.Clients, Engines: engines, CMIDs: s.CMIDs}
	for _, d := range s.Devices {
		v := Device{Snapshot: d, Counters: count(&d.Counters)}
		for _, g := range d.GIDs {
			v.GIDs = append(v.GIDs, GID{g.Index, g.GID.String(), g.GID.Addr().String(), g.Netdev, g.VLAN})
		}
		out.Devices = append(out.Devices, v)
	}
	return out
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

// Link is what an object's line begins with: the device and its port.
type Link struct {
	IfName string `json:"ifname"`
	Port   int    `json:"port"`
}

func (l Link) String() string { return fmt.Sprintf("%s/%d", l.IfName, l.Port) }

// object is an object and where it is. T's fields stand beside Link's.
type object[T any] struct {
	Link
	Of T
}

func each[T any](s *Snapshot, of func(*Device) []T) []object[T] {
	list := []object[T]{} // not null in JSON
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, o := range of(d) {
			list = append(list, object[T]{Link{d.Name, 1}, o})
		}
	}
	return list
}

// DeviceLine is what show devices tells of a NIC.
type DeviceLine struct {
	Link
	State         string   `json:"state"`
	PhysicalState string   `json:"physical_state"`
	Netdev        string   `json:"netdev,omitempty"`
	GUID          string   `json:"node_guid"`
	ActiveMTU     int      `json:"active_mtu"`
	Clients       int      `json:"clients"`
	LinkError     string   `json:"link_error,omitempty"`
	GIDs          []GID    `json:"gids"`
	PKeys         []string `json:"pkeys"`
}

func (s *Snapshot) devices() []DeviceLine {
	list := []DeviceLine{}
	for _, d := range s.Devices {
		l := DeviceLine{
			Link: Link{d.Name, 1}, State: "ACTIVE", PhysicalState: "LINK_UP", Netdev: d.Netdev, GUID: guid(d.GUID),
			ActiveMTU: d.ActiveMTU, Clients: len(d.Contexts), LinkError: d.LinkError, GIDs: d.GIDs, PKeys: []string{},
		}
		if d.PortState != nic.PortActive {
			l.State, l.PhysicalState = "DOWN", "DISABLED"
		}
		for _, k := range d.PKeys {
			l.PKeys = append(l.PKeys, fmt.Sprintf("%#04x", k))
		}
		list = append(list, l)
	}
	return list
}

// guid writes a GUID in four groups, as the rdma tool does.
func guid(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}
