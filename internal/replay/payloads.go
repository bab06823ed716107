package replay

import (
	"slices"
	"sort"
)

// A payloads is the payload of work requests, one behind the other, as a region of memory. It
// refers to the packets, and costs nothing for bytes that the capture lacks: those are zero.
type payloads struct {
	parts  []payloadPart
	length int64
}

type payloadPart struct {
	at int64
	b  []byte
}

// add adds size bytes, of which the first are those of b.
func (p *payloads) add(b []byte, size int64) {
	if b = b[:min(int64(len(b)), size)]; len(b) > 0 {
		p.parts = append(p.parts, payloadPart{p.length, b})
	}
	p.length += size
}

// appendTo appends the size bytes at an offset.
func (p *payloads) appendTo(out []byte, at, size int64) []byte {
	begin := len(out)
	out = slices.Grow(out, int(size))[:begin+int(size)]
	clear(out[begin:])
	i := sort.Search(len(p.parts), func(i int) bool { return p.parts[i].at+int64(len(p.parts[i].b)) > at })
	for ; i < len(p.parts) && p.parts[i].at < at+size; i++ {
		from := p.parts[i]
		if from.at < at {
			from.at, from.b = at, from.b[at-from.at:]
		}
		copy(out[begin+int(from.at-at):], from.b)
	}
	return out
}

// Len implements mrtable.Memory, as do View and Close.
func (p *payloads) Len() uint64 { return uint64(p.length) }

func (p *payloads) View(off uint64, n int) []byte {
	if n < 0 || n > maxView || off > p.Len() || uint64(n) > p.Len()-off {
		return nil
	}
	return p.appendTo(make([]byte, 0, n), int64(off), int64(n))
}

func (p *payloads) Close() error { return nil }
