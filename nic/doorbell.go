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
	page := (*[(abi.DoorbellSize - abi.DoorbellBits) / 8]uint64)(unsafe.Pointer(&c.opt.Doorbell[abi.DoorbellBits]))
	words := page[:(uint(len(c.doorbells))+63)/64]
	for i := 0; i < len(words); i++ {
		if i%len(doorbellLine{}) == 0 && len(words)-i >= len(doorbellLine{}) && (*doorbellLine)(words[i:]).silent() {
			i += len(doorbellLine{}) - 1
			continue
		}
		if atomic.LoadUint64(&words[i]) != 0 && c.readDoorbellWord(&words[i], 64*i) {
			any = true
		}
	}
	return any
}

// readDoorbellWord reads the bells from number first on.
func (c *Context) readDoorbellWord(word *uint64, first int) (any bool) {
	for set := atomic.SwapUint64(word, 0); set != 0; set &= set - 1 {
		n := first + bits.TrailingZeros64(set)
		if n < len(c.doorbells) && c.doorbells[n] != nil {
			c.device.tx.activate(c.doorbells[n])
			any = true
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
