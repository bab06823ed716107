package nic

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"syscall"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
	"softroce/wire"
)

// DeviceConfig is what a device is made of.
type DeviceConfig struct {
	Name   string
	Link   wire.Link      // with its middleware; the device closes it
	Iface  wire.Interface // the addresses behind the GIDs, MAC, MTU
	Limits Limits
	GUID   uint64   // 0: the EUI-64 of the interface's MAC
	PKeys  []uint16 // the P_Key table; nil: the default P_Key alone
}

// A Device is one NIC with one port.
type Device struct {
	engine *Engine
	name   string
	link   wire.Link
	iface  wire.Interface
	limits Limits
	guid   uint64
	table  *mrtable.Table
	gids   gidTable
	pkeys  []uint16
	groups map[GID]*group
	xrc    xrc
	up     bool

	contexts []*Context
	qps      qpTable
	count    objects

	deviceMemory uint64 // bytes in use

	transportEnv transport.Env
	rx           rxState
	tx           txState
	gsi          gsi

	counters  transport.Counters
	badPKeys  uint32
	linkError error // the last error of Send or Receive
}

// objects counts what exists, in a device or in a context.
type objects struct{ qps, cqs, mrs, pds, ahs, srqs, attached, mws, xrcds int }

// AddDevice adds a NIC. It is part of setting up: the engine does not run yet, or the
// caller is on it.
func (e *Engine) AddDevice(c DeviceConfig) (*Device, error) {
	if c.Name == "" || c.Link == nil || c.Iface == nil {
		return nil, errorf(syscall.EINVAL, "device needs a name, a link and an interface")
	}
	for _, d := range e.devices {
		if d.name == c.Name {
			return nil, errorf(syscall.EEXIST, "there is a device %s already", c.Name)
		}
	}
	if c.PKeys == nil {
		c.PKeys = defaultPKeys()
	}
	if err := CheckPKeys(c.PKeys); err != nil {
		return nil, err
	}
	d := &Device{
		pkeys:  slices.Clone(c.PKeys),
		engine: e, name: c.Name, link: c.Link, iface: c.Iface, limits: c.Limits.withDefaults(), guid: c.GUID,
		groups: map[GID]*group{},
		table:  mrtable.NewTable(rand.New(rand.NewPCG(e.seed, uint64(len(e.devices))))),
	}
	if d.guid == 0 {
		ll := linkLocal(c.Iface.MAC())
		d.guid = binary.BigEndian.Uint64(ll[8:])
	}
	d.xrc = xrc{shared: map[XRCDKey]*domain{}, srqs: map[uint32]*SRQ{}}
	d.gids.max = d.limits.GIDTableSize
	d.gids.update(c.Iface)
	d.up = c.Iface.Up()
	d.transportEnv = transport.Env{Mem: e.io, Table: d.table, Sink: d}
	d.qps.init()
	d.rx.init(d)
	d.tx.init(d)
	if err := e.watch(d); err != nil {
		return nil, err
	}
	e.devices = append(e.devices, d)
	c.Iface.OnChange(func() { e.post(d.interfaceChanged) })
	c.Iface.OnNeighbour(func(dst wire.Station, mac [6]byte) { e.post(func() { d.neighbourChanged(dst, mac) }) })
	return d, nil
}

// Name returns the device's name.
func (d *Device) Name() string { return d.name }

// Link returns the device's link, middleware included.
func (d *Device) Link() wire.Link { return d.link }

// Interface returns the interface whose addresses the device has.
func (d *Device) Interface() wire.Interface { return d.iface }

// GIDs returns the GID table.
func (d *Device) GIDs() []GIDEntry { return d.gids.list() }

// interfaceChanged follows the interface's addresses and state.
func (d *Device) interfaceChanged() {
	if d.gids.update(d.iface) {
		d.broadcast(ib.EventGIDChange)
	}
	if up := d.iface.Up(); up != d.up {
		d.up = up
		if up {
			d.broadcast(ib.EventPortActive)
		} else {
			d.broadcast(ib.EventPortErr)
		}
	}
}

// neighbourChanged gives the queue pairs and address handles that lead to dst its new MAC. Frames under way
// refer to the old path, so a new one takes its place.
func (d *Device) neighbourChanged(dst wire.Station, mac [6]byte) {
	for _, c := range d.contexts {
		for _, q := range c.qps {
			if q.path != nil && q.path.Dst == dst.Addr && q.path.VLAN == dst.VLAN && q.path.DstMAC != mac {
				p := *q.path
				p.DstMAC = mac
				q.path = &p
			}
		}
		for _, a := range c.ahs {
			a.moved(dst, mac)
		}
	}
}

// broadcast tells every context of an event of the port or the device.
func (d *Device) broadcast(t ib.EventType) {
	for _, c := range d.contexts {
		c.event(Event{Type: t, Port: 1})
	}
}

// Close closes every context, with a device-fatal event first, and the link.
func (d *Device) close() error {
	d.broadcast(ib.EventDeviceFatal)
	for len(d.contexts) > 0 {
		d.contexts[len(d.contexts)-1].Close()
	}
	return d.link.Close()
}
