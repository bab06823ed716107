package perf

import (
	"context"
	"sync/atomic"
	"time"

	"softroce/verbs"
)

// load posts a client's operations. It shares the machine's cores with the engines, so its loop
// does little: work requests are posted in batches with only the last signaled, and completions are
// polled in batches. All queue pairs share the work requests, because those of thousands would not
// stay in the cache.
type load struct {
	*endpoint
	peer        endpointInfo
	sge         [1]verbs.SGE   // of all work requests
	batch       []verbs.SendWR // the last one is signaled
	unsolicited []int          // Send: per queue pair, operations since the last solicited one
	wc          [64]verbs.WC

	completed uint64      // operations of all phases
	stop      atomic.Bool // end the measurement early
}

func newLoad(s *endpoint, peer endpointInfo) *load {
	l := &load{endpoint: s, peer: peer, sge: [1]verbs.SGE{s.mr.SGE(0, s.o.Size)}, batch: make([]verbs.SendWR, s.o.batch()),
		unsolicited: make([]int, len(s.qps))}
	wr := verbs.SendWR{SGList: l.sge[:], RKey: peer.RKey}
	switch s.o.Op {
	case Send:
		wr.Opcode = verbs.WRSend
	case Write:
		wr.Opcode = verbs.WRRDMAWrite
	case Read:
		wr.Opcode = verbs.WRRDMARead
	case Atomic:
		wr.Opcode, wr.CompareAdd = verbs.WRAtomicFetchAndAdd, 1
	}
	for i := range l.batch {
		l.batch[i] = wr
	}
	l.batch[len(l.batch)-1].SendFlags = verbs.SendSignaled
	return l
}

// post posts n work requests to a queue pair, the last one signaled. For Send, every refill
// messages one is solicited, to wake the server.
func (l *load) post(q, n int) error {
	batch := l.batch[len(l.batch)-n:]
	offset := uint64(q * l.o.stride())
	l.sge[0].Addr = l.mr.Addr() + offset
	for i := range batch {
		w := &batch[i]
		w.WRID, w.RemoteAddr = uint64(q), l.peer.Addr+offset
		if l.o.Type == UD {
			w.AH, w.RemoteQPN, w.RemoteQKey = l.ahs[q], l.peer.QPs[q].QPN, qkey
		}
	}
	if l.o.Op == Send {
		last := &batch[n-1]
		last.SendFlags &^= verbs.SendSolicited
		if l.unsolicited[q] += n; l.unsolicited[q] >= l.o.refill() {
			last.SendFlags |= verbs.SendSolicited
			l.unsolicited[q] = 0
		}
	}
	return l.qps[q].PostSend(batch...)
}

// warmUp returns how long nothing is counted at the beginning of a phase.
func warmUp(whole time.Duration) time.Duration { return min(whole/10, time.Second) }

// maxSamples bounds the memory of the latency phase.
const maxSamples = 1 << 20

// latency times single operations on the first queue pair for o.Latency, or until stop, and until
// at least one is counted. The beginning is warm-up.
func (l *load) latency(ctx context.Context) ([]time.Duration, error) {
	if l.o.Latency == 0 {
		return nil, nil
	}
	progress := l.o.Progress.begin(&l.o, false)
	samples := make([]time.Duration, 0, maxSamples)
	end := time.Now().Add(l.o.Latency)
	warm := warmUp(l.o.Latency)
	for start := time.Now(); (start.Before(end) || len(samples) == 0) && len(samples) < cap(samples) && (len(samples) == 0 || !l.stop.Load()); {
		if err := l.post(0, 1); err != nil {
			return nil, err
		}
		if _, err := l.reap(ctx); err != nil {
			return nil, err
		}
		l.completed++
		now := time.Now()
		if end.Sub(start) < l.o.Latency-warm || l.stop.Load() {
			samples = append(samples, now.Sub(start))
		}
		progress.operations.Store(l.completed)
		start = now
	}
	return samples, nil
}

// bandwidth keeps every queue pair full for o.Duration, or until something has completed, or until
// stop. It returns the operations completed since the first completion after the warm-up, and the
// time that they took.
func (l *load) bandwidth(ctx context.Context) (counted uint64, elapsed time.Duration, err error) {
	progress := l.o.Progress.begin(&l.o, true)
	batch := l.o.batch()
	open := 0 // batches
	for q := range l.qps {
		for range l.o.Depth / batch {
			if err := l.post(q, batch); err != nil {
				return 0, 0, err
			}
			open++
		}
	}
	start := time.Now()
	from, end := start.Add(warmUp(l.o.Duration)), start.Add(l.o.Duration)
	var first, last time.Time
	for stopping := false; open > 0; {
		n, err := l.reap(ctx)
		if err != nil {
			return 0, 0, err
		}
		now := time.Now()
		l.completed += uint64(n * batch)
		progress.operations.Add(uint64(n * batch))
		switch {
		case stopping:
		case !first.IsZero():
			counted += uint64(n * batch)
			last = now
			stopping = now.After(end)
		case now.After(from):
			first = now
		}
		if l.stop.Load() && !stopping {
			stopping = true
			if counted == 0 { // it was interrupted during the warm-up
				counted, first, last = progress.operations.Load(), start, now
			}
		}
		if stopping {
			open -= n
			continue
		}
		for i := range n {
			if err := l.post(int(l.wc[i].WRID), batch); err != nil {
				return 0, 0, err
			}
		}
	}
	return counted, last.Sub(first), nil
}

// reap waits for completions and returns the number of those in l.wc.
func (l *load) reap(ctx context.Context) (int, error) {
	for {
		n, err := l.cq.Poll(l.wc[:])
		if err != nil {
			return 0, err
		}
		for i := range n {
			if err := l.wc[i].Err(); err != nil {
				return 0, err
			}
		}
		if n > 0 {
			return n, nil
		}
		if err := l.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
}
