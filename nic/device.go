package nic

import (
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
	"softroce/wire/fault"
)

// DeviceConfig configures a device.
type DeviceConfig struct {
	Name   string
	Link   wire.Link      // with its middleware; the device closes it
	Slices []Slice        // the other engines that drive the device, in the order of their Group
	Iface  wire.Interface // provides MAC, MTU and the addresses of the GID table
	Limits Limits
	GUID   uint64   // 0: the EUI-64 of the interface's MAC
	PKeys  []uint16 // the P_Key table; nil: the default P_Key alone

	Identity Identity

	Congestion *congestion.Params // nil: the defaults
	Rate       int64              // of the port in b/s, from which congestion control starts; 0: that of Identity

	// DefaultRoCEMode is what connections use that programs request with rdma_cm: RoCEv2, or
	// RoCEv1, of which the GID table must have GIDs.
	DefaultRoCEMode packet.Network

	LinkName func() string // the link's name in Snapshot; may be nil

	Log *slog.Logger // of the first action of each fault rule; nil disables logging
}

// A Device is a NIC, or the part of it that one engine drives: see slices.go. Its link is that of
// port 1; a second port has none.
type Device struct {
	*whole

	// What each step uses comes first. So it takes few cache lines, of which a simulation of a
	// thousand NICs needs those of each.
	engine  *Engine
	link    wire.Link
	buffers *FrameBuffers
	timers  qpHeap // queue pairs by when they are to be checked: their deadlines, or earlier

	congestion congestionState

	number    int   // of the slice
	linkError error // the last error of Send or Receive

	drainedAt int64 // everything that arrived before is received; on the clock of the timers
	lag       int64 // of the link
	recent    recentQPs
	tx        txState
	counters  transport.Counters

	kept      []*keptFrame // for queue pairs that are held, in order
	keptSpare []*keptFrame // storage of the next list

	gsi gsi // of slice 0
}

// A whole is what the slices of a NIC have in common. Control operations change it, which exclude
// the other engines.
type whole struct {
	contexts []*Context
	one      [1]*Context // storage of contexts, for one
	table    *mrtable.Table
	disabled bool // by SetLink
	slices   []*Device

	up       bool
	secondUp bool // port 2 is up
	name     string
	linkName func() string // may be nil
	log      *slog.Logger  // may be nil
	iface    wire.Interface
	limits   Limits // of what clients ask for
	granted  Limits // of what they are granted
	identity Identity
	roceMode packet.Network
	guid     uint64
	gids     gidTable
	pkeys    []uint16
	groups   map[GID]*group
	xrc      xrc

	users  map[uint32]*user // by user ID
	qps    qpTable
	paths  pathTable
	count  objects
	lastID uint32 // see newID

	deviceMemory uint64 // bytes in use

	ended endedQPs

	completionFaults completionFaults

	counterShift map[string]uint64 // see Counters
	linkDowned   uint64
}

// newID returns the number by which snapshots name a new object of a context. Unlike keys, the
// numbers grant nothing, and unlike handles, they are unique in the device.
func (d *whole) newID() uint32 {
	d.lastID++
	return d.lastID
}

// AddDevice adds a NIC. It must be called before Run, or on the engine.
func (e *Engine) AddDevice(c DeviceConfig) (*Device, error) {
	if c.Name == "" || c.Link == nil || c.Iface == nil {
		return nil, errorf(syscall.EINVAL, "device needs a name, a link and an interface")
	}
	for _, d := range e.devices {
		if d.name == c.Name {
			return nil, errorf(syscall.EEXIST, "device %s exists", c.Name)
		}
	}
	if c.PKeys == nil {
		c.PKeys = defaultPKeys()
	}
	if err := CheckPKeys(c.PKeys); err != nil {
		return nil, err
	}
	if err := e.checkSlices(&c); err != nil {
		return nil, err
	}
	d := &Device{engine: e, link: c.Link, whole: &whole{
		linkName: c.LinkName,
		log:      c.Log,
		pkeys:    slices.Clone(c.PKeys),
		name:     c.Name, iface: c.Iface, limits: c.Limits.withDefaults(), guid: c.GUID,
		identity: c.Identity.withDefaults(),
		groups:   map[GID]*group{}, users: map[uint32]*user{},
		table: mrtable.NewTable(rand.New(rand.NewPCG(e.seed, uint64(len(e.devices))))),
	}}
	if n := len(d.pkeys); n > d.limits.MaxPKeys {
		return nil, errorf(syscall.EINVAL, "P_Key table of %d entries: the persona of %s has at most %d", n, c.Name, d.limits.MaxPKeys)
	}
	d.contexts = d.one[:0]
	d.completionFaults.OnAct = d.workRequestRuleActed
	if d.guid == 0 {
		ll := linkLocal(c.Iface.MAC())
		d.guid = binary.BigEndian.Uint64(ll[8:])
	}
	d.granted = d.limits.granted()
	d.xrc = xrc{shared: map[XRCDKey]*domain{}, srqs: map[uint32]*SRQ{}}
	d.gids.max, d.gids.roceV1 = d.limits.GIDTableSize, d.identity.RoCEv1GIDs
	if d.gids.roceV1 == RoCEv1GIDsBehind && !d.link.Capabilities().RoCEv1 {
		d.gids.roceV1 = NoRoCEv1GIDs
	}
	if c.DefaultRoCEMode == packet.RoCEv1 && (d.gids.roceV1 == NoRoCEv1GIDs || !d.link.Capabilities().RoCEv1) {
		return nil, errorf(syscall.EINVAL, "default_roce_mode v1: the link or the persona has no GIDs of RoCE v1; want v2")
	}
	d.roceMode = c.DefaultRoCEMode
	d.gids.update(c.Iface)
	d.up = c.Iface.Up()
	d.qps.init()
	if err := d.addSlices(&c); err != nil {
		return nil, err
	}
	c.Iface.OnChange(func() { e.post(d.interfaceChanged) })
	c.Iface.OnNeighbor(func(dst wire.Station, mac [6]byte) { e.post(func() { d.neighborChanged(dst, mac) }) })
	return d, nil
}

// Name returns the device's name.
func (d *Device) Name() string { return d.name }

// Link returns the device's link, middleware included.
func (d *Device) Link() wire.Link { return d.link }

// Interface returns the interface whose addresses the device has.
func (d *Device) Interface() wire.Interface { return d.iface }

// DefaultRoCEMode returns that of DeviceConfig.
func (d *Device) DefaultRoCEMode() packet.Network { return d.roceMode }

// GIDs returns the GID table.
func (d *Device) GIDs() []GIDEntry { return d.gids.list() }

// interfaceChanged updates the GID table and the port state from the interface.
func (d *Device) interfaceChanged() {
	if d.gids.update(d.iface) {
		for _, c := range d.contexts {
			c.addressChanges++
			atomic.StoreUint32(word(c.opt.Doorbell, abi.DoorbellAddresses), c.addressChanges)
		}
		d.broadcast(ib.EventGIDChange)
	}
	d.linkChanged()
}

// linkChanged updates the port state.
func (d *Device) linkChanged() {
	up := d.iface.Up() && !d.disabled
	if up == d.up {
		return
	}
	d.up = up
	if up {
		d.broadcast(ib.EventPortActive)
	} else {
		d.linkDowned++
		d.broadcast(ib.EventPortErr)
	}
}

// SetLink disables the port, or enables it again. A port that is disabled is down, whatever its
// interface is, and discards what it would send and receive.
func (d *Device) SetLink(up bool) {
	d.disabled = !up
	d.Note(&fault.Note{NoRule: true, Text: "link set " + upOrDown(up)})
	d.linkChanged()
}

// SetPort is SetLink for a port by its number. Port 2 has no cable: it is down at first, and if it
// is up, no peer is at the other end. EINVAL if the device does not have the port.
func (d *Device) SetPort(port int, up bool) error {
	if err := d.checkPort(port); err != nil {
		return err
	}
	if port == 1 {
		d.SetLink(up)
		return nil
	}
	d.Note(&fault.Note{NoRule: true, Text: "link of port 2 set " + upOrDown(up)})
	if up == d.secondUp {
		return nil
	}
	d.secondUp = up
	event := ib.EventPortErr
	if up {
		event = ib.EventPortActive
	}
	d.broadcastPort(event, port)
	return nil
}

// checkPort returns EINVAL if the device does not have a port.
func (d *Device) checkPort(port int) error {
	if port < 1 || port > d.identity.Ports {
		return errorf(syscall.EINVAL, "port %d: must be at least 1 and at most %d", port, d.identity.Ports)
	}
	return nil
}

func upOrDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// neighborChanged sets the MAC of the next hop in the queue pairs and address handles that send to
// dst. Frames in flight refer to the old path, so it is not changed.
func (d *Device) neighborChanged(dst wire.Station, mac [6]byte) {
	for _, c := range d.contexts {
		for _, q := range c.qps {
			if q.path != nil && q.path.Dst == dst.Addr && q.path.VLAN == dst.VLAN && q.path.DstMAC != mac {
				p := *q.path
				p.DstMAC = mac
				q.path = d.paths.share(&p)
			}
		}
		for _, a := range c.ahs {
			a.moved(dst, mac)
		}
	}
}

// broadcast reports an event of port 1 or the device to every context.
func (d *Device) broadcast(t ib.EventType) { d.broadcastPort(t, 1) }

func (d *Device) broadcastPort(t ib.EventType, port int) {
	for _, c := range d.contexts {
		c.event(Event{Type: t, Port: port})
	}
}

// NotifyFatal reports IBV_EVENT_DEVICE_FATAL to every context. It runs on the engine.
func (d *Device) NotifyFatal() { d.broadcast(ib.EventDeviceFatal) }

// close closes every context, after a device-fatal event, and the link.
func (d *Device) close() error {
	d.NotifyFatal()
	for len(d.contexts) > 0 {
		d.contexts[len(d.contexts)-1].Close()
	}
	var first error
	for _, s := range d.slices {
		if err := s.link.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
