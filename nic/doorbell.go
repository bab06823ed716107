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
		if c.parts[d.number].readDoorbells() {
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

// doorbellWords are the bells of a doorbell page.
type doorbellWords [(abi.DoorbellSize - abi.DoorbellBits) / 8]uint64

func wordsOf(page []byte) *doorbellWords {
	return (*doorbellWords)(unsafe.Pointer(&page[abi.DoorbellBits]))
}

// doorbellsOfLine is the number of bells in a doorbellLine. The lines are dealt out to the slices
// of a NIC.
const doorbellsOfLine = 64 * len(doorbellLine{})

func (p *contextPart) readDoorbells() (any bool) {
	c := p.ctx
	words := c.bells[:(uint(len(c.doorbells))+63)/64]
	for line := p.device.number * len(doorbellLine{}); line < len(words); line += len(c.parts) * len(doorbellLine{}) {
		end := line + len(doorbellLine{})
		if end <= len(words) && (*doorbellLine)(words[line:]).silent() {
			continue
		}
		for i := line; i < min(end, len(words)); i++ {
			if atomic.LoadUint64(&words[i]) != 0 && c.readDoorbellWord(p.device, &words[i], 64*i) {
				any = true
			}
		}
	}
	return any
}

// readDoorbellWord reads the bells from number first on.
func (c *Context) readDoorbellWord(d *Device, word *uint64, first int) (any bool) {
	rung := atomic.SwapUint64(word, 0)
	c.prefetchRung(rung, first)
	for set := rung; set != 0; set &= set - 1 {
		n := first + bits.TrailingZeros64(set)
		if n < len(c.doorbells) && c.doorbells[n] != nil {
			d.tx.activate(c.doorbells[n])
			any = true
		}
	}
	return any
}

// allocDoorbell assigns q a doorbell of its context, in a line of its slice.
func (p *contextPart) allocDoorbell(q *QP) (int, error) {
	c := p.ctx
	if n := len(p.freeDoorbells); n > 0 {
		bell := p.freeDoorbells[n-1]
		p.freeDoorbells = p.freeDoorbells[:n-1]
		c.doorbells[bell] = q
		return bell, nil
	}
	bell := p.nextDoorbell
	if bell >= abi.MaxDoorbells {
		return 0, errorf(syscall.ENOMEM, "all %d doorbells of the context are in use", abi.MaxDoorbells/len(c.parts))
	}
	if p.nextDoorbell++; p.nextDoorbell%doorbellsOfLine == 0 {
		p.nextDoorbell += (len(c.parts) - 1) * doorbellsOfLine
	}
	for len(c.doorbells) <= bell {
		c.doorbells = append(c.doorbells, nil)
	}
	c.doorbells[bell] = q
	return bell, nil
}

func (p *contextPart) freeDoorbell(n int) {
	p.ctx.doorbells[n] = nil
	p.freeDoorbells = append(p.freeDoorbells, n)
}
