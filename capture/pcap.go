package capture

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Lengths and magic numbers of the classic pcap format.
const (
	pcapHeaderLen  = 24
	pcapRecordLen  = 16
	pcapMicro      = 0xa1b2c3d4
	pcapNano       = 0xa1b23c4d
	pcapVersion    = 2
	pcapLinkTypeOf = 0x0fffffff // the upper bits describe the frame check sequence
)

type pcap struct {
	*source
	order binary.ByteOrder
	tick  int64 // timestamps are in nanoseconds
	link  LinkType
	seen  uint64 // frames
}

func newPcap(s *source) (*pcap, error) {
	magic, _ := s.r.Peek(4)
	f := &pcap{source: s}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic) {
		case pcapMicro:
			f.order, f.tick = order, 1000
		case pcapNano:
			f.order, f.tick = order, 1
		}
	}
	if f.order == nil {
		return nil, s.fail(0, fmt.Errorf("%w: begins with % x", ErrNotCapture, magic))
	}
	var b [pcapHeaderLen]byte
	if err := s.start(b[:], "file header"); err != nil {
		return nil, err
	}
	if v := f.order.Uint16(b[4:]); v != pcapVersion {
		return nil, s.corrupt(4, "pcap version %d", v)
	}
	f.link = LinkType(f.order.Uint32(b[20:]) & pcapLinkTypeOf)
	if err := f.link.check(); err != nil {
		return nil, s.fail(20, err)
	}
	return f, nil
}

// lost implements format: the file does not say.
func (f *pcap) lost() uint64 { return 0 }

func (f *pcap) readAhead() error { return nil }

// onNote implements format: the file has none.
func (f *pcap) onNote(func(Note)) {}

func (f *pcap) interfaces() []Interface { return []Interface{{LinkType: f.link, Seen: f.seen}} }

func (f *pcap) next() (Record, error) {
	var b [pcapRecordLen]byte
	offset := f.at
	if err := f.start(b[:], "record header"); err != nil {
		return Record{}, err
	}
	n := f.order.Uint32(b[8:])
	if n > maxRecord {
		return Record{}, f.corrupt(offset+8, "record of %d bytes", n)
	}
	rec := Record{
		Time:     time.Unix(int64(f.order.Uint32(b[:])), int64(f.order.Uint32(b[4:]))*f.tick).UTC(),
		LinkType: f.link, Length: int(f.order.Uint32(b[12:])), Offset: offset, Data: make([]byte, n),
	}
	f.seen++
	return rec, f.more(rec.Data, offset, pcapRecordLen+int(n), "record")
}
