package verbs

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/release"
)

func word64(b []byte, off int) *uint64 { return (*uint64)(unsafe.Pointer(&b[off : off+8][0])) }

// PostSend posts work requests to the send queue: ibv_post_send. It posts all of them, or none and
// returns the reason: ErrQueueFull, ErrWorkRequest, ErrState, ErrClosed, ErrDeviceFatal. Other
// errors, such as a wrong key, are reported by the completion. wr and what it refers to, except the
// memory of SGEs, may be reused after the call.
func (q *QP) PostSend(wr ...SendWR) error {
	if q.qpType == XRCRecv {
		return errNoSends
	}
	w := &q.sq
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := q.mayPost(w, len(wr), QPSRTS); err != nil {
		return err
	}
	for i := range wr {
		if !q.fits(&wr[i]) {
			return ErrWorkRequest
		}
	}
	q.prefetchSuccessors(w.offset(w.producer + uint32(len(wr))))
	for i := range wr {
		wr[i].store(w.slot(), q.qpType)
		w.producer++
	}
	release.Store32(w.produced, w.producer)
	q.ring()
	return nil
}

// PostRecv posts work requests to the receive queue: ibv_post_recv. It posts all of them, or none
// and returns the reason, as PostSend does. A queue pair with an SRQ has no receive queue: EINVAL.
func (q *QP) PostRecv(wr ...RecvWR) error {
	if q.srq != nil || q.qpType == XRCSend || q.qpType == XRCRecv {
		return errHasSRQ
	}
	w := &q.rq
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := q.mayPost(w, len(wr), QPSInit); err != nil {
		return err
	}
	for i := range wr {
		if len(wr[i].SGList) > int(q.cap.MaxRecvSGE) {
			return ErrWorkRequest
		}
	}
	w.store(wr)
	if atomic.LoadUint32(w.recvDoorbell) != 0 {
		q.ring()
	}
	return nil
}

var errNoSends = &Error{Op: "post send", Errno: syscall.EINVAL, Text: "an XRC target has no send queue"}

var errHasSRQ = &Error{Op: "post receive", Errno: syscall.EINVAL, Text: "the queue pair has no receive queue"}

// store writes receive work requests, for which there is room, and publishes them.
func (w *workQueue) store(wr []RecvWR) {
	for i := range wr {
		slot := w.slot()
		e := abi.In[abi.RecvWQE](slot)
		e.WRID, e.NumSGE = wr[i].WRID, uint32(len(wr[i].SGList))
		abi.PutSGEs(slot[abi.RecvWQESize:], wr[i].SGList)
		w.producer++
	}
	atomic.StoreUint32(w.produced, w.producer)
}

// room reports whether n more work requests fit.
func (w *workQueue) room(n int) bool {
	used := w.producer - atomic.LoadUint32(w.consumed)
	return uint64(used)+uint64(n) <= uint64(w.limit)
}

// mayPost checks the state of the queue. The caller holds its lock.
func (q *QP) mayPost(w *workQueue, n int, from QPState) error {
	if w.ring == nil || w.closing {
		return ErrClosed
	}
	if QPState(q.state.Load()) < from {
		return ErrState
	}
	if err := q.ctx.Err(); err != nil {
		return err
	}
	if !w.room(n) {
		return ErrQueueFull
	}
	return nil
}

// fits checks a work request against the slot size and the type of the queue pair.
func (q *QP) fits(wr *SendWR) bool {
	if q.qpType == UD && wr.AH == nil {
		return false
	}
	if wr.Opcode == WRBindMW && !wr.BindMW.complete() {
		return false
	}
	if wr.SendFlags&SendInline != 0 {
		return len(wr.Inline) <= int(q.cap.MaxInlineData)
	}
	return len(wr.SGList) <= int(q.cap.MaxSendSGE)
}

// offset returns where in the ring slot i begins.
func (w *workQueue) offset(i uint32) int { return abi.RingSlots + int(i&w.mask)*int(w.size) }

// slot returns the next slot to fill.
func (w *workQueue) slot() []byte {
	off := w.offset(w.producer)
	return w.ring[off : off+int(w.size) : off+int(w.size)]
}

func (wr *SendWR) store(slot []byte, kind QPType) {
	w := abi.In[abi.SendWQE](slot)
	*w = abi.SendWQE{}
	w.WRID, w.Opcode, w.Flags = wr.WRID, uint32(wr.Opcode), uint32(wr.SendFlags)
	w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
	w.CompareAdd, w.Swap = wr.CompareAdd, wr.Swap
	w.RemoteQPN, w.RemoteQKey = wr.RemoteQPN, wr.RemoteQKey
	if wr.Opcode == WRSendWithInv || wr.Opcode == WRLocalInv {
		w.Imm = wr.InvalidateRKey
	} else {
		w.SetImmediate(wr.Imm)
	}
	if kind == XRCSend {
		w.AHOrSRQ = wr.RemoteSRQN
	} else if wr.AH != nil {
		w.AHOrSRQ = wr.AH.handle.Load()
	}
	switch wr.Opcode {
	case WRBindMW:
		wr.BindMW.store(w.Bind())
	case WRFlush:
		f := w.Flush()
		f.Length, f.Placement, f.Selectivity = wr.FlushLength, uint8(wr.FlushPlacement), uint8(wr.FlushSelectivity)
	}
	if wr.SendFlags&SendInline != 0 {
		w.NumSGE = abi.PutInline(slot, wr.Inline)
	} else {
		w.NumSGE = uint32(len(wr.SGList))
		abi.PutSGEs(slot[abi.SendWQESize:], wr.SGList)
	}
}

// one is an eventfd increment of one.
var one = [8]byte{1}

// ring tells the engine that a queue has work: it sets a bit in shared memory and, only if the
// engine sleeps, makes a system call. The atomic operations order both sides: either the engine
// sees the bit before it sleeps, or this process sees that it sleeps.
func (q *QP) ring() {
	atomic.OrUint64(q.doorbell, q.bit)
	q.ctx.wake()
}

// wake wakes the engine if it sleeps.
func (c *Context) wake() {
	if atomic.LoadUint32(c.asleep) != 0 {
		unix.Write(c.doorbellFD, one[:])
	}
}
