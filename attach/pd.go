package attach

import (
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
)

func (c *conn) allocPD(*empty, *control.Packet) (reply, error) {
	var p *nic.PD
	var err error
	c.device.engine.Do(func() { p, err = c.nic.AllocPD() })
	if err != nil {
		return reply{}, err
	}
	return handleReply(c.objects.add(p)), nil
}

// destroy calls f for an object, on the engine. If f succeeds, it removes the object's handle.
func destroy[T any](c *conn, handle uint32, f func(T) error) (o T, err error) {
	if o, err = lookUp[T](&c.objects, handle); err != nil {
		return o, err
	}
	c.device.engine.Do(func() { err = f(o) })
	if err == nil {
		c.objects.remove(handle)
	}
	return o, err
}

func (c *conn) deallocPD(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	_, err := destroy(c, v.Handle, func(p *nic.PD) error { return c.nic.DeallocPD(p) })
	return reply{}, err
}
