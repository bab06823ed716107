package attach

import (
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/nic"
)

func (c *conn) allocDM(v *abi.AllocDMRequest, _ *control.Packet) (reply, error) {
	var m *nic.DM
	var err error
	c.device.engine.Do(func() { m, err = c.nic.AllocDM(v.Length, v.LogAlign) })
	if err != nil {
		return reply{}, err
	}
	return handleReply(c.objects.add(m)), nil
}

func (c *conn) freeDM(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	_, err := destroy(c, v.Handle, func(m *nic.DM) error { return c.nic.FreeDM(m) })
	return reply{}, err
}

// queryDM returns the length of device memory, for a client that imported its handle.
func (c *conn) queryDM(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{abi.QueryDMReply{Length: m.Length()}}}, nil
}

func (c *conn) copyToDM(v *abi.CopyDMRequest, data []byte) (reply, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	if uint64(len(data)) != uint64(v.Length) {
		return reply{}, errorf(syscall.EINVAL, "the body has %d bytes of data, the request says %d", len(data), v.Length)
	}
	c.device.engine.Do(func() { err = c.nic.CopyToDM(m, v.Offset, data) })
	return reply{}, err
}

func (c *conn) copyFromDM(v *abi.CopyDMRequest, _ *control.Packet) (reply, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	if v.Length > abi.DMCopyMax {
		return reply{}, errorf(syscall.EINVAL, "copy of %d bytes: the limit is %d", v.Length, abi.DMCopyMax)
	}
	data := make([]byte, v.Length)
	c.device.engine.Do(func() { err = c.nic.CopyFromDM(m, v.Offset, data) })
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{data}}, nil
}

// regDM registers a range of device memory.
func (c *conn) regDM(v *abi.RegMRRequest) (reply, error) {
	pd, err := lookUp[*nic.PD](&c.objects, v.PD)
	if err != nil {
		return reply{}, err
	}
	if v.Address > 1<<32-1 {
		return reply{}, errorf(syscall.EINVAL, "%#x is not a handle", v.Address)
	}
	dm, err := lookUp[*nic.DM](&c.objects, uint32(v.Address))
	if err != nil {
		return reply{}, err
	}
	var m *nic.MR
	c.device.engine.Do(func() {
		m, err = c.nic.RegDM(pd, dm, v.Offset, v.Length, ib.Access(v.Access))
		describeMemory(m, v.Memory, v)
	})
	if err != nil {
		return reply{}, err
	}
	return c.mrReply(m, v.Memory), nil
}
