package report

import (
	"encoding/binary"
	"time"
)

const (
	chunkEdges   = 1 << 12 // steps
	overviewSize = 1 << 10 // steps that the page has without unpacking a chunk

	// unknownEdge is a limit of more messages than the capture has.
	unknownEdge = -1
)

// An edge is a limit that an acknowledgement sets.
type edge struct {
	at    time.Duration
	limit int // how many messages of the stream the responder has credits for
}

// edges are the steps of a stream's limit.
type edges struct {
	steps    []edge // until they are finished
	overview [][2]int64
	chunks   []chunk // all steps, if there are more than those of overview
}

// add adds a step, unless the limit stays.
func (l *edges) add(e edge) {
	if n := len(l.steps); n == 0 || l.steps[n-1].limit != e.limit {
		l.steps = append(l.steps, e)
	}
}

// finish writes the steps as pairs of a time and the PSN that psn returns for a limit.
func (l *edges) finish(to *compressor, psn func(limit int) int64) {
	stride := (len(l.steps) + overviewSize - 1) / overviewSize
	for i, e := range l.steps {
		if i%stride == 0 || i == len(l.steps)-1 {
			l.overview = append(l.overview, [2]int64{int64(e.at), psn(e.limit)})
		}
	}
	for from := 0; stride > 1 && from < len(l.steps); from += chunkEdges {
		steps := l.steps[from:min(from+chunkEdges, len(l.steps))]
		c := chunk{n: len(steps), first: steps[0].at, last: steps[0].at}
		var b []byte
		var at time.Duration
		seq := int64(0)
		for _, e := range steps {
			next := psn(e.limit)
			b = binary.AppendVarint(binary.AppendVarint(b, int64(e.at-at)), next-seq)
			at, seq = e.at, next
			c.first, c.last = min(c.first, at), max(c.last, at)
		}
		c.blob = to.compress(b)
		l.chunks = append(l.chunks, c)
	}
	l.steps = nil
}
