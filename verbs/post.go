package verbs

import (
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

func word64(b []byte, off int) *uint64 { return (*uint64)(unsafe.Pointer(&b[off : off+8][0])) }

// PostSend adds work requests to the send queue: ibv_post_send. All of them are posted,
// or none and the error says why: ErrQueueFull, ErrWorkRequest, ErrState, ErrClosed,
// ErrDeviceFatal. What is wrong in other ways, such as a key, shows in the completion.
// wr and what it refers to, except the memory that SGEs name, may be reused at once.
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
	for i := range wr {
		s := w.slot()
		wr[i].store(s)
		if q.qpType == XRCSend {
			le.PutUint32(s[abi.SendRemoteSRQ:], wr[i].RemoteSRQN)
		}
		w.producer++
	}
	atomic.StoreUint32(w.produced, w.producer)
	q.ring()
	return nil
}

// PostRecv adds work requests to the receive queue: ibv_post_recv. All of them are
// posted, or none and the error says why, as for PostSend. A queue pair with an SRQ takes none:
// EINVAL.
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
	if atomic.LoadUint32(w.wanted) != 0 {
		q.ring()
	}
	return nil
}

var errNoSends = &Error{Op: "post send", Errno: syscall.EINVAL, Text: "an XRC target has no send queue"}

var errHasSRQ = &Error{Op: "post receive", Errno: syscall.EINVAL, Text: "the queue pair has no receive queue"}

// store publishes receive work requests that there is room for.
func (w *workQueue) store(wr []RecvWR) {
	for i := range wr {
		s := w.slot()
		le.PutUint64(s[abi.RecvWRID:], wr[i].WRID)
		le.PutUint32(s[abi.RecvNumSGE:], uint32(len(wr[i].SGList)))
		storeSGEs(s[abi.RecvSGEs:], wr[i].SGList)
		w.producer++
	}
	atomic.StoreUint32(w.produced, w.producer)
}

// room says whether so many more fit.
func (w *workQueue) room(n int) bool {
	used := w.producer - atomic.LoadUint32(w.consumed)
	return uint64(used)+uint64(n) <= uint64(w.limit)
}

// mayPost checks what concerns the queue. It holds the queue's lock.
func (q *QP) mayPost(w *workQueue, n int, from QPState) error {
	if w.ring == nil {
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

// fits checks what the ring's layout or the queue pair's kind does not allow.
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

// slot returns the next slot to fill.
func (w *workQueue) slot() []byte {
	off := abi.RingSlots + int(w.producer&w.mask)*int(w.size)
	return w.ring[off : off+int(w.size) : off+int(w.size)]
}

func (wr *SendWR) store(s []byte) {
	_ = s[abi.SendSGEs-1]
	le.PutUint64(s[abi.SendWRID:], wr.WRID)
	le.PutUint32(s[abi.SendOpcode:], uint32(wr.Opcode))
	le.PutUint32(s[abi.SendFlags:], uint32(wr.SendFlags))
	imm := bits.ReverseBytes32(wr.Imm) // in the ring as on the wire
	if wr.Opcode == WRSendWithInv || wr.Opcode == WRLocalInv {
		imm = wr.InvalidateRKey
	}
	le.PutUint32(s[abi.SendImm:], imm)
	le.PutUint64(s[abi.SendRemoteAddr:], wr.RemoteAddr)
	le.PutUint32(s[abi.SendRKey:], wr.RKey)
	var ah uint32
	if wr.AH != nil {
		ah = wr.AH.handle
	}
	le.PutUint32(s[abi.SendAH:], ah)
	le.PutUint64(s[abi.SendCompareAdd:], wr.CompareAdd)
	le.PutUint64(s[abi.SendSwap:], wr.Swap)
	le.PutUint32(s[abi.SendRemoteQPN:], wr.RemoteQPN)
	le.PutUint32(s[abi.SendRemoteQKey:], wr.RemoteQKey)
	switch wr.Opcode {
	case WRBindMW:
		wr.BindMW.store(s)
	case WRFlush:
		le.PutUint32(s[abi.SendFlushLength:], wr.FlushLength)
		le.PutUint32(s[abi.SendFlushPlacement:], uint32(wr.FlushPlacement))
		le.PutUint32(s[abi.SendFlushSelectivity:], uint32(wr.FlushSelectivity))
	}
	if wr.SendFlags&SendInline != 0 {
		le.PutUint32(s[abi.SendNumSGE:], uint32(copy(s[abi.SendSGEs:], wr.Inline)))
		return
	}
	le.PutUint32(s[abi.SendNumSGE:], uint32(len(wr.SGList)))
	storeSGEs(s[abi.SendSGEs:], wr.SGList)
}

func storeSGEs(s []byte, list []SGE) {
	for i := range list {
		le.PutUint64(s[abi.SGEAddr:], list[i].Addr)
		le.PutUint32(s[abi.SGELength:], list[i].Length)
		le.PutUint32(s[abi.SGELKey:], list[i].LKey)
		s = s[abi.SGESize:]
	}
}

// one is what makes an eventfd count one event.
var one = [8]byte{1}

// ring tells the engine that a queue has work: a bit in shared memory and, only where the
// engine sleeps, a system call. The atomic operations order the two sides: either the
// engine sees the bit before it sleeps, or we see that it sleeps.
func (q *QP) ring() {
	atomic.OrUint64(q.doorbell, q.bit)
	if atomic.LoadUint32(q.ctx.asleep) != 0 {
		unix.Write(q.ctx.doorbellFD, one[:])
	}
}
