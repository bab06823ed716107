package nic

import (
	"math/bits"
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
)

// readDoorbells activates the queue pairs whose doorbell bits are set, and clears the bits. Bits of
// queue pairs that do not exist are ignored.
func (d *Device) readDoorbells() (any bool) {
	for _, c := range d.contexts {
		if c.readDoorbells() {
			any = true
		}
	}
	return any
}

func (c *Context) readDoorbells() (any bool) {
	words := (len(c.doorbells) + 63) / 64
	for w := range words {
		p := word64(c.opt.Doorbell, abi.DoorbellBits+8*w)
		if atomic.LoadUint64(p) == 0 {
			continue
		}
		set := atomic.SwapUint64(p, 0)
		for set != 0 {
			n := w*64 + bits.TrailingZeros64(set)
			set &= set - 1
			if n < len(c.doorbells) && c.doorbells[n] != nil {
				c.device.tx.activate(c.doorbells[n])
				any = true
			}
		}
	}
	return any
}

// allocDoorbell assigns q a doorbell of its context.
func (c *Context) allocDoorbell(q *QP) (int, error) {
	if n := len(c.freeDoorbells); n > 0 {
		bell := c.freeDoorbells[n-1]
		c.freeDoorbells = c.freeDoorbells[:n-1]
		c.doorbells[bell] = q
		return bell, nil
	}
	if len(c.doorbells) >= abi.MaxDoorbells {
		return 0, errorf(syscall.ENOMEM, "all %d doorbells of the context are in use", abi.MaxDoorbells)
	}
	c.doorbells = append(c.doorbells, q)
	return len(c.doorbells) - 1, nil
}

func (c *Context) freeDoorbell(n int) {
	c.doorbells[n] = nil
	c.freeDoorbells = append(c.freeDoorbells, n)
}
