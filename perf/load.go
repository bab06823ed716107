package perf

import (
	"context"
	"fmt"
	"time"

	"softroce/verbs"
)

// load posts a client's operations. Its loop is kept lean, for it shares the machine's cores
// with the engines: work requests are prepared once, posted by the batch with only the last
// signaled, and their completions polled by the batch.
type load struct {
	*side
	batches [][]verbs.SendWR // of each queue pair, the last one signaled
	wc      [64]verbs.WC

	completed uint64 // operations in all
}

func newLoad(s *side, peer place) *load {
	l := &load{side: s}
	for i := range s.qps {
		wr := verbs.SendWR{
			WRID:       uint64(i),
			SGList:     []verbs.SGE{s.mr.SGE(i*s.o.stride(), s.o.Size)},
			RemoteAddr: peer.Addr + uint64(i*s.o.stride()),
			RKey:       peer.RKey,
		}
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
		batch := make([]verbs.SendWR, s.o.batch())
		for j := range batch {
			batch[j] = wr
		}
		batch[len(batch)-1].SendFlags = verbs.SendSignaled
		l.batches = append(l.batches, batch)
	}
	return l
}

// maxSamples bounds the memory of the latency phase.
const maxSamples = 1 << 20

// latency times operations one by one on the first queue pair.
func (l *load) latency(ctx context.Context) ([]time.Duration, error) {
	if l.o.Latency == 0 {
		return nil, nil
	}
	batch := l.batches[0]
	one := batch[len(batch)-1:]
	samples := make([]time.Duration, 0, maxSamples)
	end := time.Now().Add(l.o.Latency)
	warm := l.o.Latency / 10
	for start := time.Now(); start.Before(end) && len(samples) < cap(samples); {
		if err := l.qps[0].PostSend(one...); err != nil {
			return nil, err
		}
		if _, err := l.reap(ctx); err != nil {
			return nil, err
		}
		l.completed++
		now := time.Now()
		if end.Sub(start) < l.o.Latency-warm {
			samples = append(samples, now.Sub(start))
		}
		start = now
	}
	return samples, nil
}

// bandwidth keeps every queue pair full for o.Duration and returns what completed in
// the time from the first completion after a tenth of it.
func (l *load) bandwidth(ctx context.Context) (counted uint64, elapsed time.Duration, err error) {
	batch := uint64(l.o.batch())
	open := 0 // batches
	for i, q := range l.qps {
		for range l.o.Depth / int(batch) {
			if err := q.PostSend(l.batches[i]...); err != nil {
				return 0, 0, err
			}
			open++
		}
	}
	start := time.Now()
	from, end := start.Add(l.o.Duration/10), start.Add(l.o.Duration)
	var first, last time.Time
	for open > 0 {
		n, err := l.reap(ctx)
		if err != nil {
			return 0, 0, err
		}
		now := time.Now()
		l.completed += uint64(n) * batch
		if !first.IsZero() && !now.After(end) {
			counted += uint64(n) * batch
			last = now
		} else if first.IsZero() && !now.Before(from) {
			first = now
		}
		if now.After(end) {
			open -= n
			continue
		}
		for i := range n {
			q := l.wc[i].WRID
			if err := l.qps[q].PostSend(l.batches[q]...); err != nil {
				return 0, 0, err
			}
		}
	}
	if counted == 0 {
		return 0, 0, fmt.Errorf("no operation completed in %v: give a longer duration or a smaller size", l.o.Duration)
	}
	return counted, last.Sub(first), nil
}

// reap waits for completions and returns how many are in l.wc.
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
