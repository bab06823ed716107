package report

import (
	"encoding/binary"
	"time"

	"softroce/packet"
)

// A class is how the diagram shows a packet. The page knows them by the same numbers: see classes
// in page.js.
type class uint8

const (
	classRequest class = iota
	classAgain         // a request that was sent before
	classResponse
	classACK
	classNAK
	classRNR
	classCNP
	classCopy    // duplicated or delayed by the network
	classDamaged // a queue pair discards it
	numClasses

	// A block has, beside the classes, a series for each of the flags.
	seriesCE  = numClasses
	numSeries = numClasses + class(len(flags))
)

// Flags of a point.
const (
	flagCE uint8 = 1 << iota
	flagViolation
	flagComment
)

var flags = [...]uint8{flagCE, flagViolation, flagComment}

// A point is a packet as the page has it.
type point struct {
	no          int
	at          time.Duration // since the start of the capture
	side        int           // which end sent it
	stream      int           // whose request it is, or answers
	class       class
	flags       uint8
	opcode      packet.Opcode
	seq         int64 // relative to the first PSN of the stream
	bytes       int   // of payload
	outstanding int64 // bytes of the stream's requests that are not acknowledged after it
}

// Sizes of chunks, in packets.
const (
	chunkPoints = 1 << 12
	chunkTexts  = 1 << 8
)

// A chunk is points, or steps of the credits, in a compressed form, with the range of their times.
type chunk struct {
	blob        *blob
	n           int
	first, last time.Duration // the lowest and the highest time
}

// meta returns what the script needs to find a chunk whose blob has this number.
func (c *chunk) meta(id int) [4]int64 {
	return [4]int64{int64(id), int64(c.n), int64(c.first), int64(c.last)}
}

// points is the packets of a connection: chunks of points, and chunks of lines of text.
type points struct {
	*compressor
	n      int
	chunks []chunk
	texts  []*blob
	open   []point
	lines  []byte
}

func (p *points) add(pt point, text []byte) {
	p.n++
	p.open = append(p.open, pt)
	if len(p.open) == chunkPoints {
		p.closeChunk()
	}
	p.lines = append(append(p.lines, text...), '\n')
	if p.n%chunkTexts == 0 {
		p.closeTexts()
	}
}

func (p *points) finish() {
	if len(p.open) > 0 {
		p.closeChunk()
	}
	if len(p.lines) > 0 {
		p.closeTexts()
	}
	p.open, p.lines = nil, nil
}

func (p *points) closeTexts() {
	p.texts = append(p.texts, p.compress(p.lines))
	p.lines = make([]byte, 0, len(p.lines))
}

// closeChunk writes the columns of the open chunk one after the other. Numbers are differences from
// the point before, PSNs and outstanding bytes from the one before of the same stream.
func (p *points) closeChunk() {
	c := chunk{n: len(p.open), first: p.open[0].at, last: p.open[0].at}
	var b []byte
	no := 0
	for _, pt := range p.open {
		b = binary.AppendUvarint(b, uint64(pt.no-no))
		no = pt.no
	}
	at := time.Duration(0)
	for _, pt := range p.open {
		b = binary.AppendVarint(b, int64(pt.at-at))
		at = pt.at
		c.first, c.last = min(c.first, at), max(c.last, at)
	}
	for _, pt := range p.open {
		b = append(b, uint8(pt.side)|uint8(pt.stream)<<1|uint8(pt.class)<<2)
	}
	for _, pt := range p.open {
		b = append(b, pt.flags)
	}
	for _, pt := range p.open {
		b = append(b, uint8(pt.opcode))
	}
	var seq, outstanding [2]int64
	for _, pt := range p.open {
		b = binary.AppendVarint(b, pt.seq-seq[pt.stream])
		seq[pt.stream] = pt.seq
	}
	for _, pt := range p.open {
		b = binary.AppendUvarint(b, uint64(pt.bytes))
	}
	for _, pt := range p.open {
		b = binary.AppendVarint(b, pt.outstanding-outstanding[pt.stream])
		outstanding[pt.stream] = pt.outstanding
	}
	c.blob = p.compress(b)
	p.chunks = append(p.chunks, c)
	p.open = p.open[:0]
}
