package report

import (
	"encoding/binary"
	"time"
)

const (
	detail      = 8192 // packets that the page draws one by one
	blockSize   = 64   // packets of a block of the finest level
	blockFactor = 8    // blocks that a block of the next level joins
	fewBlocks   = 512  // blocks of the coarsest level, at most
	cuts        = 512  // a pause longer than this part of the capture ends a block
)

// A block is what a level of detail has of a run of packets.
type block struct {
	n           int
	first, last time.Duration
	bytes       [2]int64 // of each stream
	outstanding [2]span
	series      [2][numSeries]span // of PSNs, for each stream
}

// A span is the lowest and the highest of n values.
type span struct {
	n         int
	low, high int64
}

func (s *span) add(v int64) {
	if s.n == 0 {
		s.low, s.high = v, v
	}
	s.n++
	s.low, s.high = min(s.low, v), max(s.high, v)
}

func (s *span) join(o span) {
	switch {
	case o.n == 0:
	case s.n == 0:
		*s = o
	default:
		s.n += o.n
		s.low, s.high = min(s.low, o.low), max(s.high, o.high)
	}
}

// levels are the levels of detail of a connection, the finest first. The zero value has none.
type levels struct {
	needed bool // the connection may have more packets than the page draws one by one
	gap    time.Duration
	blocks [][]block
	blobs  []*blob // once they are finished
}

// add adds a packet to the finest level. A block ends before a pause, so that it can be drawn as a
// box.
func (l *levels) add(pt point) {
	if !l.needed {
		return
	}
	if len(l.blocks) == 0 {
		l.blocks = [][]block{nil}
	}
	finest := &l.blocks[0]
	if n := len(*finest); n == 0 || (*finest)[n-1].n == blockSize || pt.at-(*finest)[n-1].last > l.gap {
		*finest = append(*finest, block{first: pt.at, last: pt.at})
	}
	b := &(*finest)[len(*finest)-1]
	b.n++
	b.first, b.last = min(b.first, pt.at), max(b.last, pt.at)
	b.bytes[pt.stream] += int64(pt.bytes)
	b.outstanding[pt.stream].add(pt.outstanding)
	s := &b.series[pt.stream]
	s[pt.class].add(pt.seq)
	for i, flag := range flags {
		if pt.flags&flag != 0 {
			s[seriesCE+class(i)].add(pt.seq)
		}
	}
}

// finish makes the coarser levels.
func (l *levels) finish(to *compressor) {
	if len(l.blocks) == 0 {
		return
	}
	for {
		finer := l.blocks[len(l.blocks)-1]
		l.blobs = append(l.blobs, to.compress(encode(finer)))
		if len(finer) <= fewBlocks {
			return
		}
		var coarser []block
		for i := 0; i < len(finer); i += blockFactor {
			b := finer[i]
			for _, o := range finer[i+1 : min(i+blockFactor, len(finer))] {
				b.join(&o)
			}
			coarser = append(coarser, b)
		}
		l.blocks = append(l.blocks, coarser)
	}
}

func (b *block) join(o *block) {
	b.n += o.n
	b.first, b.last = min(b.first, o.first), max(b.last, o.last)
	for i := range b.bytes {
		b.bytes[i] += o.bytes[i]
		b.outstanding[i].join(o.outstanding[i])
		for j := range b.series[i] {
			b.series[i][j].join(o.series[i][j])
		}
	}
}

// encode returns the blocks of a level as the page expects them.
func encode(blocks []block) []byte {
	var b []byte
	var at time.Duration
	var seq [2]int64
	appendSpan := func(s span, base int64) {
		b = binary.AppendUvarint(b, uint64(s.n))
		b = binary.AppendVarint(b, s.low-base)
		b = binary.AppendUvarint(b, uint64(s.high-s.low))
	}
	for i := range blocks {
		k := &blocks[i]
		b = binary.AppendUvarint(b, uint64(k.n))
		b = binary.AppendVarint(b, int64(k.first-at))
		at = k.first
		b = binary.AppendUvarint(b, uint64(k.last-k.first))
		for stream := range k.series {
			b = binary.AppendUvarint(b, uint64(k.bytes[stream]))
			appendSpan(k.outstanding[stream], 0)
			present := 0
			for _, s := range k.series[stream] {
				if s.n > 0 {
					present++
				}
			}
			b = append(b, uint8(present))
			for series, s := range k.series[stream] {
				if s.n > 0 {
					b = append(b, uint8(series))
					appendSpan(s, seq[stream])
					seq[stream] = s.low
				}
			}
		}
	}
	return b
}
