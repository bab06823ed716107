package nic

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

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

// doorbellLine is the words of a cache line of the doorbell page. A step looks at the bells of all
// queue pairs, and at few lines even if there are thousands.
type doorbellLine [8]uint64

func (l *doorbellLine) silent() bool {
	return atomic.LoadUint64(&l[0])|atomic.LoadUint64(&l[1])|atomic.LoadUint64(&l[2])|atomic.LoadUint64(&l[3])|
		atomic.LoadUint64(&l[4])|atomic.LoadUint64(&l[5])|atomic.LoadUint64(&l[6])|atomic.LoadUint64(&l[7]) == 0
}

func (c *Context) readDoorbells() (any bool) {
	const bells = 64 * len(doorbellLine{})
	page := (*[(abi.DoorbellSize - abi.DoorbellBits) * 8 / bells]doorbellLine)(unsafe.Pointer(&c.opt.Doorbell[abi.DoorbellBits]))
	for i := range (len(c.doorbells) + bells - 1) / bells {
		if l := &page[i]; !l.silent() && c.readLine(l, i*bells) {
			any = true
		}
	}
	return any
}

// readLine reads the bells from number first on.
func (c *Context) readLine(l *doorbellLine, first int) (any bool) {
	for w := range l {
		if atomic.LoadUint64(&l[w]) == 0 {
			continue
		}
		for set := atomic.SwapUint64(&l[w], 0); set != 0; set &= set - 1 {
			n := first + w*64 + bits.TrailingZeros64(set)
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
