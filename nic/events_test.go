package nic_test

import (
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/wire"
)

// An unpluggableInterface is an interface whose state a test changes.
type unpluggableInterface struct {
	wire.Interface
	up     bool
	change func()
}

func (p *unpluggableInterface) Up() bool          { return p.up }
func (p *unpluggableInterface) OnChange(f func()) { p.change = f }

// Each change of the port's state raises one event per client; a notification without a change
// raises none.
func TestPortStateChangesRaiseEvents(t *testing.T) {
	w := newTestFabric(t)
	i := &unpluggableInterface{Interface: wire.StaticInterface("eth0", [6]byte{2, 0, 0, 0, 0, 1}, 1500), up: true}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i})
	check(t, err)
	one, other := w.client(d), w.client(d)
	for _, c := range []struct {
		up    bool
		want  []ib.EventType
		state ib.PortState
	}{
		{true, nil, ib.PortActive},
		{false, []ib.EventType{ib.EventPortErr}, ib.PortDown},
		{false, nil, ib.PortDown},
		{true, []ib.EventType{ib.EventPortActive}, ib.PortActive},
	} {
		i.up, one.Events, other.Events = c.up, nil, nil
		i.change()
		for _, client := range []*client{one, other} {
			var got []ib.EventType
			for _, e := range client.Events {
				got = append(got, e.Type)
				if e.Port != 1 || e.QP != nil || e.CQ != nil || e.SRQ != nil {
					t.Errorf("event %+v, want one of port 1", e)
				}
			}
			if !slices.Equal(got, c.want) || d.QueryPort().State != c.state {
				t.Errorf("up %v: events %v, want %v; port state %d", c.up, got, c.want, d.QueryPort().State)
			}
		}
	}
}
