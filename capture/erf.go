package capture

import (
	"encoding/binary"
	"time"
)

// The extensible record format of Endace's cards, which is also what ibdump writes. A record has a
// header of 16 bytes, extension headers of 8 bytes if the type says so, and the frame. A file is a
// sequence of records; in a pcap file of link type ERF each packet is a record.
const (
	erfHeaderLen    = 16
	erfExtensionLen = 8
	erfExtended     = 0x80 // in the type, and in the first byte of an extension header: one follows

	erfEthernet   = 2
	erfInfiniBand = 21

	erfEthernetPad = 2 // bytes before an Ethernet frame: its offset and a pad
)

// An erfHeader is the header of a record.
type erfHeader struct {
	time     time.Time
	kind     uint8
	extended bool
	rlen     int // length of the record, if the file has nothing but records
	wlen     int // length of the frame on the wire
	lost     int // records lost before this one
}

func parseERFHeader(b []byte) erfHeader {
	_ = b[erfHeaderLen-1]
	// The time is a number of seconds with 32 bits behind the point, the rest of the header is
	// big-endian.
	fraction, seconds := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	be := binary.BigEndian
	return erfHeader{
		time: time.Unix(int64(seconds), int64(uint64(fraction)*1e9>>32)).UTC(),
		kind: b[8] &^ erfExtended, extended: b[8]&erfExtended != 0,
		rlen: int(be.Uint16(b[10:])), lost: int(be.Uint16(b[12:])), wlen: int(be.Uint16(b[14:])),
	}
}

// erfFrame returns the frame that an ERF record contains, of the link type that the record has.
// The capture may have cut it, or have padded the record. A record that ends inside its headers
// stays as it is.
func erfFrame(rec Record) Record {
	b := rec.Data
	if len(b) < erfHeaderLen {
		return rec
	}
	h := parseERFHeader(b)
	b = b[erfHeaderLen:]
	for more := h.extended; more; {
		if len(b) < erfExtensionLen {
			return rec
		}
		more = b[0]&erfExtended != 0
		b = b[erfExtensionLen:]
	}
	switch h.kind {
	case erfInfiniBand:
		rec.LinkType = InfiniBand
	case erfEthernet:
		if len(b) < erfEthernetPad {
			return rec
		}
		b = b[erfEthernetPad:]
		rec.LinkType = Ethernet
	default:
		rec.LinkType = erfOther
	}
	rec.Data, rec.Length = b[:min(len(b), h.wlen)], h.wlen
	return rec
}

// erfOther is the link type of records with another type, which is none of a file's.
const erfOther LinkType = 1 << 31

// isERF reports whether a file consists of ERF records. The format has no magic number: the header
// of the first record decides.
func isERF(s *source) bool {
	b, _ := s.r.Peek(erfHeaderLen)
	if len(b) < erfHeaderLen {
		return false
	}
	h := parseERFHeader(b)
	const reserved = 0xc0 // of the flags
	return (h.kind == erfInfiniBand || h.kind == erfEthernet) && b[9]&reserved == 0 && h.rlen >= erfHeaderLen && h.wlen > 0
}

// An erf is a file of ERF records.
type erf struct {
	*source
	seen, gone uint64
}

func (f *erf) next() (Record, error) {
	var b [erfHeaderLen]byte
	offset := f.at
	if err := f.start(b[:], "record header"); err != nil {
		return Record{}, err
	}
	h := parseERFHeader(b[:])
	if h.rlen < erfHeaderLen {
		return Record{}, f.corrupt(offset+10, "record of %d bytes", h.rlen)
	}
	rec := Record{Time: h.time, LinkType: ERF, Offset: offset, Length: h.rlen, Data: make([]byte, h.rlen)}
	copy(rec.Data, b[:])
	if err := f.more(rec.Data[erfHeaderLen:], offset, h.rlen, "record"); err != nil {
		return Record{}, err
	}
	f.seen++
	f.gone += uint64(h.lost)
	return rec, nil
}

// lost implements format.
func (f *erf) lost() uint64 { return f.gone }

func (f *erf) readAhead() error { return nil }

// onNote implements format: the file has none.
func (f *erf) onNote(func(Note)) {}

func (f *erf) interfaces() []Interface {
	return []Interface{{LinkType: ERF, Seen: f.seen + f.gone, Lost: f.gone}}
}
