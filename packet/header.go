package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Lengths in bytes.
const (
	BTHLen          = 12
	RETHLen         = 16
	AETHLen         = 4
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
	DETHLen         = 8
	FETHLen         = 4
	XRCETHLen       = 4
	GRHLen          = 40
	ICRCLen         = 4

	// MaxHeaderLen bounds BTH and extended headers of any opcode: XRC atomics have 44.
	MaxHeaderLen = 64
)

// headerLen gives the length of the header behind each bit of Headers.
var headerLen = [...]int{RETHLen, AETHLen, AtomicETHLen, AtomicAckETHLen, ImmDtLen, IETHLen, DETHLen, FETHLen, XRCETHLen, 4}

// DefaultPKey is the full-member default partition.
const DefaultPKey = 0xffff

// Errors of Parse and PayloadLen; match with errors.Is.
var (
	ErrShort  = errors.New("packet is shorter than its headers")
	ErrOpcode = errors.New("opcode is not assigned")
	ErrPad    = errors.New("pad count exceeds the payload")
)

// BTH is the base transport header. PSN and DestQP have 24 bits.
type BTH struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       uint8 // 0 to 3
	TVer      uint8 // 0 in every packet that is accepted
	PKey      uint16
	FECN      bool
	BECN      bool
	Reserved6 uint8 // six bits beside FECN and BECN
	DestQP    uint32
	AckReq    bool
	Reserved7 uint8 // seven bits beside AckReq
	PSN       uint32
}

// RETH is the RDMA extended header: what a WRITE or READ addresses.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32 // bytes
}

// AtomicETH is the header of COMPARE_SWAP and FETCH_ADD (addend in SwapAdd).
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// AETH is the ACK extended header.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// DETH is the datagram header of UD.
type DETH struct {
	QKey     uint32
	SrcQP    uint32 // 24 bits
	Reserved uint8
}

// FETH is the header of FLUSH.
type FETH struct {
	Placement   uint8 // bit 0 global visibility, bit 1 persistence; four bits
	Selectivity uint8 // 0 range, 1 whole region; two bits
	Reserved    uint32
}

// Header is the parsed form of BTH and the extended headers. Only those that
// Opcode.Info().Headers names hold anything.
type Header struct {
	BTH
	RETH       RETH
	AETH       AETH
	Atomic     AtomicETH
	OrigData   uint64 // AtomicAckETH
	Imm        uint32 // ImmDt, as a big-endian number
	Invalidate uint32 // IETH: the R_Key
	DETH       DETH
	FETH       FETH
	XRCSRQ     uint32 // XRCETH, 24 bits
	XRCResv    uint8
}

// Parse reads BTH and extended headers from the start of b and returns their
// length. It checks that b holds them, and nothing else; errors are ErrShort and
// ErrOpcode. After ErrOpcode the BTH holds what the packet has. b ends before the ICRC.
func (h *Header) Parse(b []byte) (int, error) {
	if len(b) < BTHLen {
		return 0, ErrShort
	}
	h.BTH.parse(b)
	in := h.Opcode.Info()
	if !in.Valid {
		return 0, ErrOpcode
	}
	if len(b) < in.HeaderLen {
		return 0, ErrShort
	}
	h.parseExtended(b[BTHLen:], in.Headers)
	return in.HeaderLen, nil
}

// PayloadLen returns the bytes of payload, without pad, of a packet that is n bytes
// long from BTH to pad. The error is ErrShort or ErrPad: the packet does not hold its
// headers, or not the pad that its BTH announces.
func (h *Header) PayloadLen(n int) (int, error) {
	n -= h.Opcode.Info().HeaderLen
	switch {
	case n < 0:
		return 0, ErrShort
	case n < int(h.Pad):
		return 0, ErrPad
	}
	return n - int(h.Pad), nil
}

func (h *BTH) parse(b []byte) {
	_ = b[11]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&0x80 != 0
	h.MigReq = b[1]&0x40 != 0
	h.Pad = b[1] >> 4 & 3
	h.TVer = b[1] & 0xf
	h.PKey = binary.BigEndian.Uint16(b[2:])
	w := binary.BigEndian.Uint32(b[4:])
	h.FECN = w>>31 != 0
	h.BECN = w>>30&1 != 0
	h.Reserved6 = uint8(w >> 24 & 0x3f)
	h.DestQP = w & 0xffffff
	w = binary.BigEndian.Uint32(b[8:])
	h.AckReq = w>>31 != 0
	h.Reserved7 = uint8(w >> 24 & 0x7f)
	h.PSN = w & 0xffffff
}

func (h *BTH) put(b []byte) {
	_ = b[11]
	b[0] = byte(h.Opcode)
	f := h.Pad&3<<4 | h.TVer&0xf
	if h.Solicited {
		f |= 0x80
	}
	if h.MigReq {
		f |= 0x40
	}
	b[1] = f
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	w := h.DestQP&0xffffff | uint32(h.Reserved6&0x3f)<<24
	if h.FECN {
		w |= 1 << 31
	}
	if h.BECN {
		w |= 1 << 30
	}
	binary.BigEndian.PutUint32(b[4:], w)
	w = h.PSN&0xffffff | uint32(h.Reserved7&0x7f)<<24
	if h.AckReq {
		w |= 1 << 31
	}
	binary.BigEndian.PutUint32(b[8:], w)
}

// The order below is the order on the wire: XRCETH and DETH stand first, FETH
// before RETH, RETH before ImmDt.
func (h *Header) parseExtended(b []byte, has Headers) {
	be := binary.BigEndian
	if has&HasXRCETH != 0 {
		w := be.Uint32(b)
		h.XRCResv, h.XRCSRQ = uint8(w>>24), w&0xffffff
		b = b[XRCETHLen:]
	}
	if has&HasDETH != 0 {
		w := be.Uint32(b[4:])
		h.DETH = DETH{be.Uint32(b), w & 0xffffff, uint8(w >> 24)}
		b = b[DETHLen:]
	}
	if has&HasFETH != 0 {
		w := be.Uint32(b)
		h.FETH = FETH{uint8(w & 0xf), uint8(w >> 4 & 3), w &^ 0x3f}
		b = b[FETHLen:]
	}
	if has&HasRETH != 0 {
		h.RETH = RETH{be.Uint64(b), be.Uint32(b[8:]), be.Uint32(b[12:])}
		b = b[RETHLen:]
	}
	if has&HasAtomicETH != 0 {
		h.Atomic = AtomicETH{be.Uint64(b), be.Uint32(b[8:]), be.Uint64(b[12:]), be.Uint64(b[20:])}
		b = b[AtomicETHLen:]
	}
	if has&HasAETH != 0 {
		w := be.Uint32(b)
		h.AETH = AETH{Syndrome(w >> 24), w & 0xffffff}
		b = b[AETHLen:]
	}
	if has&HasAtomicAckETH != 0 {
		h.OrigData = be.Uint64(b)
		b = b[AtomicAckETHLen:]
	}
	if has&HasImmDt != 0 {
		h.Imm = be.Uint32(b)
		b = b[ImmDtLen:]
	}
	if has&HasIETH != 0 {
		h.Invalidate = be.Uint32(b)
	}
}

// Put writes BTH and the extended headers of h.Opcode to b, which has room for
// MaxHeaderLen bytes, and returns how many it wrote. An unassigned opcode gets its BTH alone.
func (h *Header) Put(b []byte) int {
	h.BTH.put(b)
	in := h.Opcode.Info()
	if in.Headers != 0 {
		h.putExtended(b[BTHLen:], in.Headers)
	}
	if !in.Valid {
		return BTHLen
	}
	return in.HeaderLen
}

func (h *Header) putExtended(b []byte, has Headers) {
	be := binary.BigEndian
	if has&HasXRCETH != 0 {
		be.PutUint32(b, uint32(h.XRCResv)<<24|h.XRCSRQ&0xffffff)
		b = b[XRCETHLen:]
	}
	if has&HasDETH != 0 {
		be.PutUint32(b, h.DETH.QKey)
		be.PutUint32(b[4:], uint32(h.DETH.Reserved)<<24|h.DETH.SrcQP&0xffffff)
		b = b[DETHLen:]
	}
	if has&HasFETH != 0 {
		be.PutUint32(b, h.FETH.Reserved&^0x3f|uint32(h.FETH.Selectivity&3)<<4|uint32(h.FETH.Placement&0xf))
		b = b[FETHLen:]
	}
	if has&HasRETH != 0 {
		be.PutUint64(b, h.RETH.VA)
		be.PutUint32(b[8:], h.RETH.RKey)
		be.PutUint32(b[12:], h.RETH.Length)
		b = b[RETHLen:]
	}
	if has&HasAtomicETH != 0 {
		be.PutUint64(b, h.Atomic.VA)
		be.PutUint32(b[8:], h.Atomic.RKey)
		be.PutUint64(b[12:], h.Atomic.SwapAdd)
		be.PutUint64(b[20:], h.Atomic.Compare)
		b = b[AtomicETHLen:]
	}
	if has&HasAETH != 0 {
		be.PutUint32(b, uint32(h.AETH.Syndrome)<<24|h.AETH.MSN&0xffffff)
		b = b[AETHLen:]
	}
	if has&HasAtomicAckETH != 0 {
		be.PutUint64(b, h.OrigData)
		b = b[AtomicAckETHLen:]
	}
	if has&HasImmDt != 0 {
		be.PutUint32(b, h.Imm)
		b = b[ImmDtLen:]
	}
	if has&HasIETH != 0 {
		be.PutUint32(b, h.Invalidate)
	}
}

func (h *BTH) String() string {
	return fmt.Sprintf("%v qp=%#x psn=%d", h.Opcode, h.DestQP, h.PSN)
}
