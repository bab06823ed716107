package nic

import "syscall"

// A kind is a kind of object whose number is limited.
type kind int

const (
	kindQP kind = iota
	kindCQ
	kindMR
	kindPD
	kindAH
	kindSRQ
	kindMW
	kindXRCD
	kindAttached // attachments of queue pairs to multicast groups
	kinds
)

var kindNames = [kinds]string{"QP", "CQ", "MR", "PD", "AH", "SRQ", "MW", "XRCD", "attached QP"}

// objects counts the objects of a device, a user or a context.
type objects [kinds]int

// of returns the limit of a device.
func (l *Limits) of(k kind) int {
	return [kinds]int{l.MaxQP, l.MaxCQ, l.MaxMR, l.MaxPD, l.MaxAH, l.MaxSRQ, l.MaxMW, l.MaxXRCD, l.MaxMcastAttached}[k]
}

// of returns the limit of a context, 0 for that of the device.
func (l *ContextLimits) of(k kind) int {
	return [kinds]int{l.QPs, l.CQs, l.MRs, l.PDs, l.AHs, l.SRQs, l.MWs, l.XRCDs, l.Groups}[k]
}

// A user is what the contexts of one user have of a device.
type user struct {
	contexts     int
	count        objects
	deviceMemory uint64 // bytes
}

// add changes the number of objects of a kind by n.
func (c *Context) add(k kind, n int) {
	c.count[k] += n
	c.user.count[k] += n
	c.device.count[k] += n
}

// checkLimit returns ENOMEM if one more object of a kind exceeds the limit of the context, of its
// user or of the device.
func (c *Context) checkLimit(k kind) error {
	d, what := c.device, kindNames[k]
	if most := c.limits.of(k); most > 0 && c.count[k] >= most {
		return errorf(syscall.ENOMEM, "all %d %ss of the context are in use", most, what)
	}
	return c.checkShare(what, c.user.count[k], d.count[k], d.limits.of(k), c.limits.of(k))
}

// checkShare returns ENOMEM unless the user, who has have, may have one more of the device's total,
// of which used are in use. No user may have more than remains free, so that another always finds
// something left. That does not apply to a device with less than two contexts may have, or if
// contexts have no limit (0).
func (c *Context) checkShare(what string, have, used, total, perContext int) error {
	free := total - used
	switch {
	case free <= 0:
		return errorf(syscall.ENOMEM, "all %d %ss of the device are in use", total, what)
	case perContext > 0 && perContext <= total/2 && have+1 > free-1:
		return errorf(syscall.ENOMEM, "user %d has %d %ss; %d of the device's %d are free, and no user may have more than remain free",
			c.opt.UID, have, what, free, total)
	}
	return nil
}
