package attach

import (
	"os"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/nic"
)

func (c *conn) hello(v *abi.HelloRequest, _ *control.Packet) (reply, error) {
	c.helloDone, c.comm = true, printable(abi.Text(v.Comm[:]))
	c.show()
	r := abi.HelloReply{PID: uint32(os.Getpid()), Devices: uint32(len(c.server.devices))}
	abi.PutText(r.Release[:], c.server.config.Release)
	return reply{body: []any{r}}, nil
}

// printable replaces the characters of a client's name that do not belong in a log or on a
// terminal.
func printable(s string) string {
	b := []byte(s)
	for i, ch := range b {
		if ch < ' ' || ch > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

func (c *conn) listDevices(*empty, *control.Packet) (reply, error) {
	a := reply{body: []any{abi.ListReply{Count: uint32(len(c.server.devices))}}}
	for _, d := range c.server.devices {
		var e abi.DeviceEntry
		d.engine.Do(func() {
			port := d.QueryPort()
			abi.PutText(e.Netdev[:], port.Netdev)
			e.NodeGUID, e.PortState = d.Query().NodeGUID, uint32(port.State)
		})
		abi.PutText(e.Name[:], d.Name())
		a.body = append(a.body, e)
	}
	return a, nil
}

// openDevice creates the connection's context.
func (c *conn) openDevice(v *abi.OpenDeviceRequest, _ *control.Packet) (reply, error) {
	if err := c.checkNotOpen(); err != nil {
		return reply{}, err
	}
	name := abi.Text(v.Name[:])
	d, ok := c.server.findDevice(name)
	if !ok {
		return reply{}, c.server.noDevice(name)
	}
	bells, bellsFD, err := c.account.sharedMemory("doorbells", abi.DoorbellSize)
	if err != nil {
		return reply{}, err
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		c.account.unmap(bells)
		unix.Close(bellsFD)
		return reply{}, err
	}
	sink, fds, err := newEventRing(c, d.engine)
	if err == nil {
		d.engine.Do(func() {
			c.nic, err = d.Open(nic.ContextOptions{
				Doorbell: bells, DoorbellFD: bell, Limits: c.server.config.Limits.context(),
				Events: sink, Client: c.number, PID: c.peer.PID, Group: c.peer.Group, UID: c.peer.UID, Comm: c.comm, Privileged: c.peer.privileged(),
			})
		})
		if err != nil {
			c.nic = nil
			sink.release()
		}
	}
	if err != nil {
		c.account.unmap(bells)
		for _, fd := range append(fds, bellsFD, bell) {
			unix.Close(fd)
		}
		return reply{}, err
	}
	c.device, c.events, c.doorbells, c.doorbellFD = d, sink, bells, bell
	c.publish(bellsFD)
	c.show()
	c.server.log.Info("client attached", "nic", d.Name(), "pid", c.peer.PID, "uid", c.peer.UID, "comm", c.comm)
	r := c.openReply()
	return reply{
		body:       []any{r},
		fds:        []int{bellsFD, bell, fds[0], fds[1]},
		closeAfter: []int{bellsFD, fds[0], fds[1]},
	}, nil
}

// openReply describes the context that c has opened or joined.
func (c *conn) openReply() abi.OpenDeviceReply {
	rings := c.events.rings
	r := abi.OpenDeviceReply{DoorbellSize: abi.DoorbellSize, EventSlots: eventSlots, Chunk: rings.number(), EventRing: rings.offset()}
	c.device.engine.Do(func() { r.NodeGUID = c.device.Query().NodeGUID })
	abi.PutText(r.Name[:], c.device.Name())
	return r
}

func (c *conn) queryDevice(*empty, *control.Packet) (reply, error) {
	var a nic.DeviceAttr
	var maxDM uint64
	c.device.engine.Do(func() { a, maxDM = c.nic.QueryDevice(), c.nic.MaxDM() })
	r := abi.DeviceAttr{
		NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID, MaxMRSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap,
		VendorID: a.VendorID, VendorPartID: a.VendorPartID, HWVer: a.HWVer,
		MaxQP: uint32(a.MaxQP), MaxQPWR: uint32(a.MaxQPWR), DeviceCapFlags: a.DeviceCapFlags,
		MaxSGE: uint32(a.MaxSGE), MaxSGERd: uint32(a.MaxSGERd), MaxCQ: uint32(a.MaxCQ), MaxCQE: uint32(a.MaxCQE),
		MaxMR: uint32(a.MaxMR), MaxPD: uint32(a.MaxPD), MaxQPRdAtom: uint32(a.MaxQPRDAtomic),
		MaxResRdAtom: uint32(a.MaxResRDAtomic), MaxQPInitRdAtom: uint32(a.MaxQPInitRDAtom),
		AtomicCap: uint32(a.AtomicCap), MaxAH: uint32(a.MaxAH), MaxSRQ: uint32(a.MaxSRQ), MaxSRQWR: uint32(a.MaxSRQWR),
		MaxSRQSGE:   uint32(a.MaxSRQSGE),
		MaxMcastGrp: uint32(a.MaxMcastGroups), MaxMcastQPAttach: uint32(a.MaxMcastQPs),
		MaxTotalMcastQPAttach: uint32(a.MaxMcastAttached), MaxPKeys: uint32(a.MaxPKeys), LocalCAAckDelay: uint32(a.LocalCAACKDelay),
		PhysPortCnt: uint32(a.PhysPortCnt), MaxInlineData: uint32(a.MaxInlineData),
		MaxMW: uint32(a.MaxMW), DeviceCapFlagsEx: a.CapFlagsEx,
		HCACoreClock: a.CoreClock, TimestampMask: a.TimestampMask, MaxDMSize: maxDM,
	}
	if a.OnDemandPaging {
		r.OnDemandPaging = 1
	}
	abi.PutText(r.FWVer[:], a.FWVer)
	return reply{body: []any{r}}, nil
}

func (c *conn) queryPort(v *abi.QueryPortRequest, _ *control.Packet) (reply, error) {
	var a nic.PortAttr
	var err error
	c.device.engine.Do(func() { a, err = c.device.QueryPortNumber(int(v.Port)) })
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{abi.PortAttr{
		State: uint32(a.State), PhysState: uint8(a.PhysState), MaxMTU: mtuCode(a.MaxMTU), ActiveMTU: mtuCode(a.ActiveMTU),
		GIDTblLen: uint32(a.GIDTableLen), PKeyTblLen: uint16(a.PKeyTableLen), PortCapFlags: a.CapFlags,
		MaxMsgSize: a.MaxMsgSize, BadPKeyCntr: a.BadPKeyCntr, QKeyViolCntr: a.QKeyViolCntr, MaxVLNum: 1,
		ActiveWidth: uint8(a.ActiveWidth), ActiveSpeed: uint8(min(a.ActiveSpeed, ib.SpeedNDR)), LinkLayer: uint8(a.LinkLayer),
		ActiveSpeedEx: uint32(a.ActiveSpeed), Rate: uint32(ib.BitRate(a.ActiveSpeed, a.ActiveWidth) / 1e8),
	}}}, nil
}

// mtuCode returns the ibv_mtu of a path MTU in bytes, or 0 if there is none.
func mtuCode(bytes int) uint32 {
	code, _ := ib.MTUOf(bytes)
	return uint32(code)
}

func (c *conn) queryGIDs(*empty, *control.Packet) (reply, error) {
	var gids []nic.GIDEntry
	c.device.engine.Do(func() { gids = c.device.GIDs() })
	gids = gids[:min(len(gids), (abi.MaxMessage-64)/abi.Size(abi.GIDEntry{}))]
	a := reply{body: []any{abi.ListReply{Count: uint32(len(gids))}}}
	for _, g := range gids {
		e := abi.GIDEntry{GID: g.GID, Index: uint32(g.Index), Type: ib.GIDTypeRoCEv2, VLAN: uint32(g.VLAN)}
		if g.RoCEv1 {
			e.Type = ib.GIDTypeRoCEv1
		}
		abi.PutText(e.Netdev[:], g.Netdev)
		a.body = append(a.body, e)
	}
	return a, nil
}

func (c *conn) queryPKeys(*empty, *control.Packet) (reply, error) {
	var keys []uint16
	c.device.engine.Do(func() { keys = c.device.PKeys() })
	return reply{body: []any{abi.ListReply{Count: uint32(len(keys))}, keys}}, nil
}

func (c *conn) queryClock(*empty, *control.Packet) (reply, error) {
	var clock, wall int64
	var err error
	c.device.engine.Do(func() { clock, wall, err = c.device.Clock() })
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{abi.ClockReply{Clock: uint64(clock), Wallclock: uint64(wall)}}}, nil
}
