package attach

import (
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/nic"
)

func (c *conn) attachMcast(v *abi.McastRequest, _ *control.Packet) (reply, error) {
	return c.mcast(v, (*nic.Context).AttachMcast)
}

func (c *conn) detachMcast(v *abi.McastRequest, _ *control.Packet) (reply, error) {
	return c.mcast(v, (*nic.Context).DetachMcast)
}

func (c *conn) mcast(v *abi.McastRequest, f func(*nic.Context, *nic.QP, nic.GID) error) (reply, error) {
	q, err := lookUp[*qp](&c.objects, v.QP)
	if err != nil {
		return reply{}, err
	}
	c.device.engine.Do(func() { err = f(c.nic, q.nic, v.GID) })
	return reply{}, err
}
