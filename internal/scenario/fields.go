package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"softroce/capture"
	"softroce/packet"
)

// A field is a header field. Its name is the one that softroce decode prints.
type field struct {
	name   string
	header packet.Headers // the header that contains it; 0: the BTH
	bits   int
	at     func(*packet.Header) accessor
}

// An accessor reads and writes one field.
type accessor struct {
	get func() uint64
	set func(uint64)
}

func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64](p *T) accessor {
	return accessor{func() uint64 { return uint64(*p) }, func(v uint64) { *p = T(v) }}
}

func boolean(p *bool) accessor {
	return accessor{
		func() uint64 {
			if *p {
				return 1
			}
			return 0
		}, func(v uint64) { *p = v != 0 },
	}
}

var fields = []field{
	{"dest_qp", 0, 24, func(h *packet.Header) accessor { return number(&h.DestQP) }},
	{"psn", 0, 24, func(h *packet.Header) accessor { return number(&h.PSN) }},
	{"ack_req", 0, 1, func(h *packet.Header) accessor { return boolean(&h.AckReq) }},
	{"se", 0, 1, func(h *packet.Header) accessor { return boolean(&h.Solicited) }},
	{"migreq", 0, 1, func(h *packet.Header) accessor { return boolean(&h.MigReq) }},
	{"pad", 0, 2, func(h *packet.Header) accessor { return number(&h.Pad) }},
	{"tver", 0, 4, func(h *packet.Header) accessor { return number(&h.TVer) }},
	{"pkey", 0, 16, func(h *packet.Header) accessor { return number(&h.PKey) }},
	{"fecn", 0, 1, func(h *packet.Header) accessor { return boolean(&h.FECN) }},
	{"becn", 0, 1, func(h *packet.Header) accessor { return boolean(&h.BECN) }},
	{"resv6", 0, 6, func(h *packet.Header) accessor { return number(&h.Reserved6) }},
	{"resv7", 0, 7, func(h *packet.Header) accessor { return number(&h.Reserved7) }},
	{"xrceth.srq", packet.HasXRCETH, 24, func(h *packet.Header) accessor { return number(&h.XRCSRQ) }},
	{"deth.qkey", packet.HasDETH, 32, func(h *packet.Header) accessor { return number(&h.DETH.QKey) }},
	{"deth.src_qp", packet.HasDETH, 24, func(h *packet.Header) accessor { return number(&h.DETH.SrcQP) }},
	{"feth.placement", packet.HasFETH, 4, func(h *packet.Header) accessor { return number(&h.FETH.Placement) }},
	{"feth.selectivity", packet.HasFETH, 2, func(h *packet.Header) accessor { return number(&h.FETH.Selectivity) }},
	{"reth.va", packet.HasRETH, 64, func(h *packet.Header) accessor { return number(&h.RETH.VA) }},
	{"reth.rkey", packet.HasRETH, 32, func(h *packet.Header) accessor { return number(&h.RETH.RKey) }},
	{"reth.length", packet.HasRETH, 32, func(h *packet.Header) accessor { return number(&h.RETH.Length) }},
	{"atomiceth.va", packet.HasAtomicETH, 64, func(h *packet.Header) accessor { return number(&h.Atomic.VA) }},
	{"atomiceth.rkey", packet.HasAtomicETH, 32, func(h *packet.Header) accessor { return number(&h.Atomic.RKey) }},
	{"atomiceth.swap_add", packet.HasAtomicETH, 64, func(h *packet.Header) accessor { return number(&h.Atomic.SwapAdd) }},
	{"atomiceth.compare", packet.HasAtomicETH, 64, func(h *packet.Header) accessor { return number(&h.Atomic.Compare) }},
	{"aeth.syndrome", packet.HasAETH, 8, func(h *packet.Header) accessor { return number(&h.AETH.Syndrome) }},
	{"aeth.msn", packet.HasAETH, 24, func(h *packet.Header) accessor { return number(&h.AETH.MSN) }},
	{"atomicacketh.original", packet.HasAtomicAckETH, 64, func(h *packet.Header) accessor { return number(&h.OrigData) }},
	{"immdt", packet.HasImmDt, 32, func(h *packet.Header) accessor { return number(&h.Imm) }},
	{"ieth.rkey", packet.HasIETH, 32, func(h *packet.Header) accessor { return number(&h.Invalidate) }},
}

func fieldNamed(name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

// check returns an error if packets of an opcode do not have the field.
func (f *field) check(o packet.Opcode) error {
	if f.header != 0 && o.Info().Headers&f.header == 0 {
		return fmt.Errorf("%v has no %s", o, f.name)
	}
	return nil
}

// fieldValue parses the value of a field: a number, a place in a memory region (for addresses and
// keys), the name of a queue, or a syndrome. mask selects the bits to compare.
func (s *script) fieldValue(f *field, w string) (v uint64, mask uint64, err error) {
	mask = 1<<f.bits - 1
	if f.bits == 64 {
		mask = ^uint64(0)
	}
	if f.name == "aeth.syndrome" {
		syn, any, err := parseSyndrome(w)
		if any {
			mask = uint64(^packet.SyndromeValue)
		}
		return uint64(syn), mask, err
	}
	if n, err := strconv.ParseUint(w, 0, f.bits); err == nil {
		return n, mask, nil
	}
	name := f.name[strings.IndexByte(f.name, '.')+1:]
	if name == "va" || name == "rkey" {
		r, err := s.parsePlace(w)
		if err != nil {
			return 0, 0, err
		}
		if name == "va" {
			return r.addr, mask, nil
		}
		return uint64(r.region.RKey), mask, nil
	}
	if q, ok := s.qps[w]; ok && (f.name == "dest_qp" || f.name == "deth.src_qp") {
		return uint64(q.qpn), mask, nil
	}
	if n, ok := s.srqs[w]; ok && f.name == "xrceth.srq" {
		return uint64(n), mask, nil
	}
	return 0, 0, fmt.Errorf("%s=%s: want a number of up to %d bits", f.name, w, f.bits)
}

// A place is a range of bytes in a memory region.
type place struct {
	region *region
	off    uint64
	addr   uint64
	length uint64 // defaults to the rest of the region
}

// parsePlace parses REGION or REGION+OFFSET, optionally followed by :LENGTH.
func (s *script) parsePlace(w string) (p place, err error) {
	where, length, hasLength := strings.Cut(w, ":")
	name, off, hasOff := strings.Cut(where, "+")
	p.region = s.regions[name]
	if p.region == nil {
		return p, fmt.Errorf("no memory region %q", name)
	}
	if hasOff {
		if p.off, err = parseNumber(off, 64); err != nil {
			return p, fmt.Errorf("%q: offset: %w", w, err)
		}
	}
	p.addr = p.region.Addr + p.off
	p.length = uint64(p.region.Size) - min(p.off, uint64(p.region.Size))
	if hasLength {
		if p.length, err = parseNumber(length, 32); err != nil {
			return p, fmt.Errorf("%q: length: %w", w, err)
		}
	}
	return p, nil
}

// shorthands are options that set several fields from a place in memory: its address, key and
// length.
var shorthands = map[string][]string{
	"reth":      {"reth.va", "reth.rkey", "reth.length"},
	"atomiceth": {"atomiceth.va", "atomiceth.rkey"},
}

// expand replaces shorthands by the fields that they set.
func (s *script) expand(options []option) (l []option, err error) {
	for _, o := range options {
		names, ok := shorthands[o.name]
		if !ok {
			l = append(l, o)
			continue
		}
		p, err := s.parsePlace(o.value)
		if err != nil {
			return nil, err
		}
		for i, v := range []uint64{p.addr, uint64(p.region.RKey), p.length}[:len(names)] {
			l = append(l, option{names[i], strconv.FormatUint(v, 10)})
		}
	}
	return l, nil
}

// A fieldMatch is the expected value of a field.
type fieldMatch struct {
	f       *field
	v, mask uint64
	text    string // the value as written in the script
}

func (w *fieldMatch) check(p *capture.Packet) error {
	if got := w.f.at(&p.Header).get(); got&w.mask != w.v&w.mask {
		if w.f.name == "aeth.syndrome" {
			return fmt.Errorf("%s is %#02x (%v), want %s", w.f.name, got, packet.Syndrome(got), w.text)
		}
		if w.f.bits > 24 {
			return fmt.Errorf("%s is %#x, want %s", w.f.name, got, w.text)
		}
		return fmt.Errorf("%s is %d, want %s", w.f.name, got, w.text)
	}
	return nil
}
