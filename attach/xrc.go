package attach

import (
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/nic"
)

// openXRCD identifies a domain by the file behind the descriptor, as the kernel does. A client that
// may read the file may open the domain.
func (c *conn) openXRCD(v *abi.OpenXRCDRequest, p *control.Packet) (prepared, error) {
	if v.Flags&^(abi.XRCDCreate|abi.XRCDExclusive) != 0 {
		return prepared{}, errorf(syscall.EINVAL, "unknown flags %#x", v.Flags)
	}
	var key nic.XRCDKey
	if len(p.FDs) > 0 {
		if err := checkAccess(p.FDs[0], unix.O_RDONLY, unix.O_RDWR); err != nil {
			return prepared{}, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(p.FDs[0], &st); err != nil {
			return prepared{}, err
		}
		key = nic.XRCDKey{Device: st.Dev, Inode: st.Ino}
	}
	return prepared{commit: func() (reply, error) {
		create := v.Flags&abi.XRCDCreate != 0
		var x *nic.XRCD
		var err error
		c.device.engine.Do(func() { x, err = c.nic.OpenXRCD(key, create, create && v.Flags&abi.XRCDExclusive != 0) })
		if err != nil {
			return reply{}, err
		}
		return handleReply(c.objects.add(x)), nil
	}}, nil
}

func (c *conn) closeXRCD(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	_, err := destroy(c, v.Handle, func(x *nic.XRCD) error { return c.nic.CloseXRCD(x) })
	return reply{}, err
}

// xrcSRQInit adds the XRC domain and the CQ of an XRC SRQ to init.
func (c *conn) xrcSRQInit(v *abi.CreateSRQRequest, init *nic.SRQInit) error {
	switch {
	case v.Type == abi.SRQBasic && v.XRCD == 0 && v.CQ == 0:
		return nil
	case v.Type != abi.SRQXRC:
		return errorf(syscall.EINVAL, "SRQ of type %d with XRCD %d and CQ %d: want a basic SRQ with neither or an XRC SRQ with both", v.Type, v.XRCD, v.CQ)
	}
	var err error
	if init.XRCD, err = lookUp[*nic.XRCD](&c.objects, v.XRCD); err != nil {
		return err
	}
	q, err := lookUp[*cq](&c.objects, v.CQ)
	if err != nil {
		return err
	}
	init.CQ = q.nic
	return nil
}

// newXRCInit is newQPInit for XRC. An initiator has no receive queue, and a target has no queue.
func (c *conn) newXRCInit(v *abi.CreateQPRequest, init nic.QPInit) (nic.QPInit, error) {
	var err error
	if init.Type == ib.QPTypeXRCRecv {
		if v.PD|v.SendCQ|v.RecvCQ|v.SRQ != 0 {
			return init, errorf(syscall.EINVAL, "an XRC target QP has an XRCD, and no PD, CQ or SRQ")
		}
		init.Caps = nic.Caps{}
		init.XRCD, err = lookUp[*nic.XRCD](&c.objects, v.XRCD)
		return init, err
	}
	if v.RecvCQ|v.SRQ|v.XRCD != 0 {
		return init, errorf(syscall.EINVAL, "an XRC initiator QP has no receive CQ, SRQ or XRCD")
	}
	init.Caps.MaxRecvWR, init.Caps.MaxRecvSGE = 0, 0
	if init.PD, err = lookUp[*nic.PD](&c.objects, v.PD); err != nil {
		return init, err
	}
	q, err := lookUp[*cq](&c.objects, v.SendCQ)
	if err != nil {
		return init, err
	}
	init.SendCQ = q.nic
	return init, nil
}
