package attach

import (
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/nic"
)

func (c *conn) allocMW(v *abi.AllocMWRequest, _ *control.Packet) (reply, error) {
	pd, err := lookUp[*nic.PD](&c.objects, v.PD)
	if err != nil {
		return reply{}, err
	}
	var m *nic.MW
	var r abi.AllocMWReply
	c.device.engine.Do(func() {
		if m, err = c.nic.AllocMW(pd, ib.MWType(v.Type)); err == nil {
			r.RKey = m.RKey()
		}
	})
	if err != nil {
		return reply{}, err
	}
	r.Handle = c.objects.add(m)
	return reply{body: []any{r}}, nil
}

func (c *conn) deallocMW(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	_, err := destroy(c, v.Handle, func(m *nic.MW) error { return c.nic.DeallocMW(m) })
	return reply{}, err
}
