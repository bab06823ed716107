package attach

import (
	"syscall"

	"softroce/internal/abi"
	"softroce/mrtable"
	"softroce/nic"
)

// handles maps the handles of one client to its objects. A handle is not reused before the 32-bit
// counter wraps, so a stale one names nothing.
type handles struct {
	m       map[uint32]any
	last    uint32
	account *account
}

func (h *handles) init() { h.m = map[uint32]any{} }

func (h *handles) add(o any) uint32 {
	n := h.newHandle()
	h.m[n] = o
	return n
}

// remove removes an object that is destroyed. Its request took the memory that is released here:
// see creates.
func (h *handles) remove(handle uint32) {
	cost := uint64(objectBytes)
	if _, ok := h.m[handle].(*qp); ok {
		cost = queuePairBytes
	}
	h.account.release(amounts{memory: cost})
	delete(h.m, handle)
}

// newHandle reserves a handle for an object that is about to be created.
func (h *handles) newHandle() uint32 {
	for {
		h.last++
		if _, taken := h.m[h.last]; h.last != 0 && !taken {
			return h.last
		}
	}
}

// Objects of clients that nic has no type for, or that hold resources of this process.
type (
	channel struct {
		events *eventSocket
		users  int
	}
	cq struct {
		nic         *nic.CQ
		rings       *ringMemory
		channel     *channel
		ownsChannel bool // no other CQ can use the channel
	}
	qp struct {
		nic   *nic.QP
		rings *ringMemory // nil for an XRC target
	}
	srq struct {
		nic   *nic.SRQ
		rings *ringMemory
	}
	heldMemory struct{ mem mrtable.Memory }
)

// lookUp returns the object of type T with a handle.
func lookUp[T any](h *handles, handle uint32) (T, error) {
	o, ok := h.m[handle].(T)
	if !ok {
		return o, errorf(syscall.ENOENT, "handle %d is not a %s of this context", handle, kind(o))
	}
	return o, nil
}

func kind(o any) string {
	switch o.(type) {
	case *nic.PD:
		return "PD"
	case *nic.MR:
		return "MR"
	case *nic.AH:
		return "AH"
	case *nic.MW:
		return "MW"
	case *nic.DM:
		return "DM"
	case *nic.XRCD:
		return "XRCD"
	case *channel:
		return "completion channel"
	case *cq:
		return "CQ"
	case *srq:
		return "SRQ"
	case *heldMemory:
		return "hold"
	}
	return "QP"
}

// release frees the objects' resources in this process. The engine must have closed the objects.
func (h *handles) release() {
	for _, o := range h.m {
		switch o := o.(type) {
		case *cq:
			o.release(h.account)
		case *qp:
			o.release()
		case *srq:
			o.rings.release()
		case *channel:
			h.account.closeEventSocket(o.events)
		case *heldMemory:
			o.mem.Close()
		}
	}
	h.init()
}

func (q *cq) release(a *account) {
	q.rings.release()
	if q.ownsChannel {
		a.closeEventSocket(q.channel.events)
	} else if q.channel != nil {
		q.channel.users--
	}
}

func (q *qp) release() {
	if q.rings != nil {
		q.rings.release()
	}
}

func handleReply(h uint32) reply { return reply{body: []any{abi.HandleReply{Handle: h}}} }
