package nic

import (
	"softroce/internal/ib"
	"softroce/transport"
)

// While writes to another process's memory are queued, completions are held back: the data of
// one may not be there yet, and may turn out not to have a place.

// A held completion waits for what was queued before it.
type held struct {
	q  *QP
	cq *CQ
	transport.Completion
}

// A memoryFault is a queue pair one of whose sides could not write.
type memoryFault struct {
	by   *transport.Writer
	told bool // a completion says so; those behind it are flushed
}

// complete stages a completion of q, or holds it.
func (e *Engine) complete(q *QP, cq *CQ, c *transport.Completion) {
	if len(e.held) > 0 || e.io.Unsettled() {
		e.held = append(e.held, held{q, cq, *c})
		return
	}
	if c.Recv || c.Signaled {
		cq.push(e, q, c)
	}
}

// memoryFailed hears that a write of a queue pair failed after the transport took it for done.
func (e *Engine) memoryFailed(tag any, _ error) {
	by := tag.(*transport.Writer)
	q := by.QP.UserData().(*QP)
	if q.ctx == nil {
		return
	}
	told := false
	for i := range e.held {
		h := &e.held[i]
		told = told || h.q == q && h.speaksOf(by)
	}
	e.faults = append(e.faults, memoryFault{by: by})
	q.t.MemoryFault(q.device.enter(q), by, told)
	q.noteState()
	q.device.tx.activate(q)
}

// speaksOf reports whether h says that data of a queue pair's side is in memory.
func (h *held) speaksOf(by *transport.Writer) bool {
	if h.Status != ib.WCSuccess || h.Recv == by.Requester {
		return false
	}
	return h.Recv || h.Opcode == ib.WCRDMARead || h.Opcode == ib.WCCompSwap || h.Opcode == ib.WCFetchAdd
}

// release stages what was held, now that it is known what failed.
func (e *Engine) release() {
	for i := range e.held {
		h := &e.held[i]
		for k := range e.faults {
			e.faults[k].spoil(h)
		}
		if h.Recv || h.Signaled {
			h.cq.push(e, h.q, &h.Completion)
		}
	}
	clear(e.held)
	clear(e.faults)
	e.held, e.faults = e.held[:0], e.faults[:0]
}

// spoil makes h an error if it is of the side that failed: the first that speaks of data gets the
// local protection error, signaled or not, and what was done behind it counts as flushed, as
// after any error.
func (f *memoryFault) spoil(h *held) {
	if h.q.t != f.by.QP || h.Recv == f.by.Requester || h.Status != ib.WCSuccess {
		return
	}
	c := &h.q.device.counters
	switch {
	case f.told:
		h.Status = ib.WCWRFlushErr
	case h.speaksOf(f.by):
		h.Status, f.told = ib.WCLocProtErr, true
	default:
		return
	}
	h.Signaled = true
	switch {
	case h.Status == ib.WCWRFlushErr && h.Recv:
		c.RespCQEFlush++
	case h.Status == ib.WCWRFlushErr:
		c.ReqCQEFlush++
	case h.Recv:
		c.RespCQEError++
	default:
		c.ReqCQEError++
	}
}
