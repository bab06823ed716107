package capture

import (
	"encoding/binary"
	"math/bits"
	"time"
)

// Block types and other constants of the pcapng format that the reader needs
// (draft-ietf-opsawg-pcapng).
const (
	blockSection   = 0x0a0d0d0a // the same in both byte orders
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockCounts    = 5 // interface statistics
	blockEnhanced  = 6
	blockJournal   = 9 // systemd journal export

	blockHeadLen = 8  // type and length
	blockLen     = 12 // the trailing length
	ngVersion    = 1

	optionEnd        = 0
	optionComment    = 1
	optionName       = 2
	optionResolution = 9
	optionOffset     = 14
	optionReceived   = 4 // of interface statistics, as is the next
	optionDropped    = 5

	// byteOrderMark is in every section header.
	byteOrderMark uint32 = 0x1a2b3c4d
)

type pcapng struct {
	*source
	order binary.ByteOrder
	list  []ngInterface // interfaces of this section
	ended uint64        // frames lost in the sections before
	note  func(Note)    // may be nil
}

type ngInterface struct {
	name    string
	frames  uint64 // that were read
	seen    uint64 // as the file says, as is the next
	lost    uint64
	link    LinkType
	snap    uint32
	binary  bool // the clock ticks 2^exp times a second; otherwise 10^exp times
	exp     uint8
	seconds int64 // added to the timestamps
}

// A block is the type and the body of a block at an offset of the file.
type block struct {
	kind   uint32
	body   []byte
	offset int64
}

func newPcapng(s *source) (*pcapng, error) {
	f := &pcapng{source: s, order: binary.LittleEndian}
	b, err := f.block()
	if err != nil {
		return nil, err
	}
	if err := f.section(b); err != nil {
		return nil, err
	}
	return f, nil
}

// next returns the frame of the next block that has one.
func (f *pcapng) next() (Record, error) {
	for {
		b, err := f.block()
		if err != nil {
			return Record{}, err
		}
		switch b.kind {
		case blockSection:
			err = f.section(b)
		case blockInterface:
			err = f.addInterface(b)
		case blockCounts:
			f.count(b)
		case blockJournal:
			f.journal(b)
		case blockEnhanced:
			return f.enhanced(b, 4)
		case blockPacket:
			return f.enhanced(b, 2)
		case blockSimple:
			return f.simple(b)
		}
		if err != nil {
			return Record{}, err
		}
	}
}

// block reads a block. It skips the body of a block without frames or options that matter.
func (f *pcapng) block() (block, error) {
	var head [blockHeadLen + 4]byte
	b := block{offset: f.at}
	if err := f.start(head[:blockHeadLen], "block header"); err != nil {
		return b, err
	}
	b.kind = f.order.Uint32(head[:])
	have := blockHeadLen
	if b.kind == blockSection { // its byte order is needed to read its length
		if err := f.more(head[blockHeadLen:], b.offset, len(head), "section header"); err != nil {
			return b, err
		}
		have = len(head)
		switch byteOrderMark {
		case binary.LittleEndian.Uint32(head[blockHeadLen:]):
			f.order = binary.LittleEndian
		case binary.BigEndian.Uint32(head[blockHeadLen:]):
			f.order = binary.BigEndian
		default:
			return b, f.corrupt(b.offset+blockHeadLen, "byte order mark % x", head[blockHeadLen:])
		}
	}
	size := f.order.Uint32(head[4:])
	if size < blockLen || size%4 != 0 || int(size) < have+4 {
		return b, f.corrupt(b.offset+4, "block of %d bytes", size)
	}
	if err := f.body(&b, head[blockHeadLen:have], int(size)); err != nil {
		return b, err
	}
	var tail [4]byte
	if err := f.more(tail[:], b.offset, int(size), "block"); err != nil {
		return b, err
	}
	if again := f.order.Uint32(tail[:]); again != size {
		return b, f.corrupt(f.at-4, "block of %d bytes ends with length %d", size, again)
	}
	return b, nil
}

// body reads what is between the two lengths of a block. already is the beginning of it.
func (f *pcapng) body(b *block, already []byte, size int) error {
	n := size - blockLen
	switch b.kind {
	case blockSection, blockInterface, blockPacket, blockSimple, blockCounts, blockEnhanced:
	case blockJournal:
		if f.note == nil || n > maxRecord {
			return f.skip(int64(n), b.offset, size, "block")
		}
	default:
		return f.skip(int64(n), b.offset, size, "block")
	}
	if n > maxRecord {
		return f.corrupt(b.offset+4, "block of %d bytes", size)
	}
	b.body = make([]byte, n)
	copy(b.body, already)
	return f.more(b.body[len(already):], b.offset, size, "block")
}

// in returns the offset in the file of byte i of a block's body.
func (b block) in(i int) int64 { return b.offset + blockHeadLen + int64(i) }

func (f *pcapng) section(b block) error {
	if len(b.body) < 16 {
		return f.corrupt(b.offset, "section header of %d bytes", len(b.body)+blockLen)
	}
	if v := f.order.Uint16(b.body[4:]); v != ngVersion {
		return f.corrupt(b.in(4), "pcapng version %d", v)
	}
	f.ended = f.lost()
	f.list = nil
	return nil
}

// lost returns how many frames the capture lost, as far as the file has said.
func (f *pcapng) lost() uint64 {
	n := f.ended
	for i := range f.list {
		n += f.list[i].lost
	}
	return n
}

// onNote implements format.
func (f *pcapng) onNote(note func(Note)) { f.note = note }

// readAhead implements format.
func (f *pcapng) readAhead() error {
	for f.r.Buffered() >= blockHeadLen {
		head, err := f.r.Peek(blockHeadLen)
		if err != nil || f.order.Uint32(head) != blockInterface || int64(f.order.Uint32(head[4:])) > int64(f.r.Buffered()) {
			break
		}
		b, err := f.block()
		if err != nil {
			return err
		}
		if err := f.addInterface(b); err != nil {
			return err
		}
	}
	return nil
}

// interfaces returns those of this section.
func (f *pcapng) interfaces() (l []Interface) {
	for i := range f.list {
		n := &f.list[i]
		l = append(l, Interface{Name: n.name, LinkType: n.link, Seen: max(n.seen, n.frames+n.lost), Lost: n.lost})
	}
	return l
}

func (f *pcapng) addInterface(b block) error {
	if len(b.body) < 8 {
		return f.corrupt(b.offset, "interface description of %d bytes", len(b.body)+blockLen)
	}
	i := ngInterface{link: LinkType(f.order.Uint16(b.body)), snap: f.order.Uint32(b.body[4:]), exp: 6}
	if err := f.options(b, 8, i.option); err != nil {
		return err
	}
	f.list = append(f.list, i)
	return nil
}

// options calls apply for each option of a block, from byte at of its body on. apply reports
// whether the value is valid.
func (f *pcapng) options(b block, at int, apply func(order binary.ByteOrder, code uint16, v []byte) bool) error {
	for at+4 <= len(b.body) {
		code, n := f.order.Uint16(b.body[at:]), int(f.order.Uint16(b.body[at+2:]))
		if code == optionEnd {
			break
		}
		if at+4+n > len(b.body) {
			return f.corrupt(b.in(at), "option of %d bytes runs past its block", n)
		}
		if !apply(f.order, code, b.body[at+4:at+4+n]) {
			return f.corrupt(b.in(at), "option %d has %d bytes, % x", code, n, b.body[at+4:at+4+n])
		}
		at += 4 + (n+3)&^3
	}
	return nil
}

// count takes interface statistics into account, which count from the beginning of the capture. It
// ignores what is not valid, since no frame depends on it.
func (f *pcapng) count(b block) {
	if len(b.body) < 12 || uint64(f.order.Uint32(b.body)) >= uint64(len(f.list)) {
		return
	}
	i := &f.list[f.order.Uint32(b.body)]
	f.options(b, 12, func(order binary.ByteOrder, code uint16, v []byte) bool {
		switch {
		case len(v) != 8:
		case code == optionReceived:
			i.seen = order.Uint64(v)
		case code == optionDropped:
			i.lost = order.Uint64(v)
		}
		return true
	})
}

// journal passes on a note. It ignores an entry that is not valid, since no frame depends on it.
func (f *pcapng) journal(b block) {
	if n, ok := parseNote(b.body); ok && f.note != nil {
		f.note(n)
	}
}

// comments returns those in the options of a packet block, which begin at a byte of its body, as
// far as they are valid.
func (f *pcapng) comments(b block, at int) (l []string) {
	f.options(b, at, func(_ binary.ByteOrder, code uint16, v []byte) bool {
		if code == optionComment {
			l = append(l, string(v))
		}
		return true
	})
	return l
}

// option applies the value of an option, and reports whether it is valid.
func (i *ngInterface) option(order binary.ByteOrder, code uint16, v []byte) bool {
	switch code {
	case optionName:
		i.name = string(v)
	case optionResolution:
		if len(v) != 1 {
			return false
		}
		i.binary, i.exp = v[0]&0x80 != 0, v[0]&0x7f
		return i.binary && i.exp < 64 || !i.binary && i.exp <= 19
	case optionOffset:
		if len(v) != 8 {
			return false
		}
		i.seconds = int64(order.Uint64(v))
	}
	return true
}

// time returns the time of a number of ticks of the interface's clock.
func (i *ngInterface) time(ticks uint64) time.Time {
	perSecond := uint64(1)
	if i.binary {
		perSecond <<= i.exp
	} else {
		for range i.exp {
			perSecond *= 10
		}
	}
	hi, lo := bits.Mul64(ticks%perSecond, 1e9)
	ns, _ := bits.Div64(hi, lo, perSecond)
	return time.Unix(int64(ticks/perSecond)+i.seconds, int64(ns)).UTC()
}

// enhanced reads an enhanced packet block, or the obsolete packet block, which has an interface
// number of two bytes.
func (f *pcapng) enhanced(b block, numberLen int) (Record, error) {
	if len(b.body) < 20 {
		return Record{}, f.corrupt(b.offset, "packet block of %d bytes", len(b.body)+blockLen)
	}
	number := int(f.order.Uint16(b.body))
	if numberLen == 4 {
		number = int(f.order.Uint32(b.body))
	}
	if number >= len(f.list) {
		return Record{}, f.corrupt(b.in(0), "interface %d of %d", number, len(f.list))
	}
	ticks := uint64(f.order.Uint32(b.body[4:]))<<32 | uint64(f.order.Uint32(b.body[8:]))
	n := f.order.Uint32(b.body[12:])
	if int64(n) > int64(len(b.body)-20) {
		return Record{}, f.corrupt(b.in(12), "packet of %d bytes in a block of %d", n, len(b.body)+blockLen)
	}
	i := &f.list[number]
	i.frames++
	return Record{
		Time: i.time(ticks), Interface: number, NIC: i.name, LinkType: i.link,
		Length: int(f.order.Uint32(b.body[16:])), Offset: b.offset, Data: b.body[20 : 20+n],
		Comments: f.comments(b, 20+int(n+3)&^3),
	}, nil
}

// simple reads a simple packet block: a frame of the first interface, without a time.
func (f *pcapng) simple(b block) (Record, error) {
	if len(b.body) < 4 || len(f.list) == 0 {
		return Record{}, f.corrupt(b.offset, "simple packet block of %d bytes, %d interfaces", len(b.body)+blockLen, len(f.list))
	}
	i := &f.list[0]
	length := f.order.Uint32(b.body)
	n := min(int64(length), int64(len(b.body)-4))
	if i.snap != 0 {
		n = min(n, int64(i.snap))
	}
	i.frames++
	return Record{
		Time: time.Unix(0, 0).UTC(), NIC: i.name, LinkType: i.link, Length: int(length), Offset: b.offset, Data: b.body[4 : 4+n],
	}, nil
}
