// Package show prints the state of a running daemon: as JSON, or as text in the style of iproute2's
// rdma tool, one line of keys and values for each object.
package show

import (
	"fmt"

	"softroce/internal/daemon"
	"softroce/internal/ib"
)

// Link is the device and port that an object belongs to.
type Link struct {
	IfName string `json:"ifname"`
	Port   int    `json:"port"`
}

func (l Link) String() string { return fmt.Sprintf("%s/%d", l.IfName, l.Port) }

// object is an object and its link. In JSON the fields of both are on one level.
type object[T any] struct {
	Link
	Of T
}

func collect[T any](s *daemon.Snapshot, of func(*daemon.Device) []T) []object[T] {
	list := []object[T]{} // an empty list is [] in JSON, not null
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, o := range of(d) {
			list = append(list, object[T]{Link{d.Name, 1}, o})
		}
	}
	return list
}

// DeviceLine is a NIC in the output of show devices.
type DeviceLine struct {
	Link
	State         string       `json:"state"`
	PhysicalState string       `json:"physical_state"`
	Netdev        string       `json:"netdev,omitempty"`
	Via           string       `json:"via,omitempty"` // the kind of link, its interface and mode
	GUID          string       `json:"node_guid"`
	ActiveMTU     int          `json:"active_mtu"`
	Engines       int          `json:"engines"`
	Clients       int          `json:"clients"`
	LinkError     string       `json:"link_error,omitempty"`
	GIDs          []daemon.GID `json:"gids"`
	PKeys         []uint16     `json:"pkeys"` // by index; 0: no key
}

func devices(s *daemon.Snapshot) []DeviceLine {
	list := []DeviceLine{}
	for _, d := range s.Devices {
		l := DeviceLine{
			Link: Link{d.Name, 1}, State: "ACTIVE", PhysicalState: "LINK_UP", Netdev: d.Netdev, Via: d.Link, GUID: guid(d.GUID),
			ActiveMTU: d.ActiveMTU, Engines: d.Engines, Clients: len(d.Contexts), LinkError: d.LinkError, GIDs: d.GIDs, PKeys: append([]uint16{}, d.PKeys...),
		}
		if d.PortState != ib.PortActive {
			l.State, l.PhysicalState = "DOWN", "DISABLED"
		}
		list = append(list, l)
		if d.Port2 != 0 {
			l.Port, l.State, l.PhysicalState, l.Netdev, l.Via, l.LinkError, l.GIDs = 2, "DOWN", "DISABLED", "", "", "", []daemon.GID{}
			if d.Port2 == ib.PortActive {
				l.State, l.PhysicalState = "ACTIVE", "LINK_UP"
			}
			list = append(list, l)
		}
	}
	return list
}

// guid formats a GUID in four groups, as the rdma tool does.
func guid(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}
