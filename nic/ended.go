package nic

import (
	"slices"

	"softroce/internal/ib"
	"softroce/transport"
)

// maxEnded is how many queue pairs a device remembers that failed and were destroyed or reset.
const maxEnded = 128

// An EndedQP is a queue pair that failed, or waited without progress, and was destroyed or reset
// since.
type EndedQP struct {
	Number uint64 `json:"number"` // in the order in which they ended
	QPInfo
}

// endedQPs is the history of a device. If it is full, the user with the most entries loses the
// oldest one, so that no user can remove those of others who have fewer.
type endedQPs struct {
	list []EndedQP
	last uint64
}

// add adds a queue pair to the history, unless it is nil.
func (l *endedQPs) add(q *QPInfo) {
	if q == nil {
		return
	}
	if len(l.list) >= maxEnded {
		l.evict()
	}
	l.last++
	l.list = append(l.list, EndedQP{l.last, *q})
}

func (l *endedQPs) evict() {
	count := map[uint32]int{}
	most := l.list[0].UID
	for _, q := range l.list {
		if count[q.UID]++; count[q.UID] > count[most] {
			most = q.UID
		}
	}
	i := slices.IndexFunc(l.list, func(q EndedQP) bool { return q.UID == most })
	l.list = slices.Delete(l.list, i, i+1)
}

// ending returns what the history has of q, which is about to be destroyed or reset: nil unless it
// has failed, or makes no progress.
func (q *QP) ending() *QPInfo {
	switch f, s := q.t.Failure(), q.t.Stall(); {
	case f == nil && s.Timeouts == 0 && s.For != transport.WaitRNR:
		return nil
	case f != nil && f.Reason == transport.ReasonModified:
		return nil
	}
	info := q.info(q.ctx.owner())
	return &info
}

func (c *Context) owner() Owner {
	return Owner{Client: c.opt.Client, PID: c.opt.PID, Group: c.opt.Group, UID: c.opt.UID, Comm: c.opt.Comm}
}

// diagnosis returns why q failed, or what it waits for, for a description.
func (q *QP) diagnosis() (*transport.Failure, *transport.Stall) {
	if f := q.t.Failure(); f != nil {
		seen := *f
		return &seen, nil
	}
	if s := q.t.State(); s != ib.QPSRTS && s != ib.QPSSQD {
		return nil, nil
	}
	s := q.t.Stall()
	return nil, &s
}
