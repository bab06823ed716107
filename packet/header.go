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

	// MaxHeaderLen is room for BTH and extended headers of any opcode. The longest, of XRC atomics,
	// have 44 bytes.
	MaxHeaderLen = 64
)

// headerLen is the length of the extended header of each bit of Headers.
var headerLen = [...]int{RETHLen, AETHLen, AtomicETHLen, AtomicAckETHLen, ImmDtLen, IETHLen, DETHLen, FETHLen, XRCETHLen, 4}

// DefaultPKey is the P_Key of full members of the default partition.
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
	TVer      uint8 // transport version, 0 in every valid packet
	PKey      uint16
	FECN      bool
	BECN      bool
	Reserved6 uint8 // 6 bits after FECN and BECN
	DestQP    uint32
	AckReq    bool
	Reserved7 uint8 // 7 bits after AckReq
	PSN       uint32
}

// RETH is the RDMA extended transport header of READ and WRITE.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32 // DMA length in bytes
}

// AtomicETH is the extended transport header of COMPARE_SWAP and FETCH_ADD, whose operand is
// SwapAdd.
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// AETH is the ACK extended transport header.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// DETH is the datagram extended transport header of UD.
type DETH struct {
	QKey     uint32
	SrcQP    uint32 // 24 bits
	Reserved uint8
}

// FETH is the extended transport header of FLUSH (annex A19).
type FETH struct {
	Placement   uint8 // 4 bits: bit 0 global visibility, bit 1 persistence
	Selectivity uint8 // 2 bits: 0 range, 1 whole region
	Reserved    uint32
}

// Header is a parsed BTH with its extended headers. Only the extended headers in
// Opcode.Info().Headers are valid.
type Header struct {
	BTH
	RETH       RETH
	AETH       AETH
	Atomic     AtomicETH
	OrigData   uint64 // AtomicAckETH
	Imm        uint32 // ImmDt
	Invalidate uint32 // IETH: R_Key
	DETH       DETH
	FETH       FETH
	XRCSRQ     uint32 // XRCETH, 24 bits
	XRCResv    uint8
}

// Parse parses the BTH and extended headers at the start of b and returns their length. It checks
// only that b contains them; errors are ErrShort and ErrOpcode. With ErrOpcode the BTH is valid. b
// must not include the ICRC.
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

// PayloadLen returns the payload length, without pad, of a packet with n bytes from BTH to pad. It
// returns ErrShort if the packet does not contain its headers, and ErrPad if it does not contain
// the pad that its BTH announces.
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

// Parts of the BTH that are looked at without parsing it.
const (
	padMask   = 3 << 4  // in the second byte
	ackReqBit = 1 << 31 // in the word of the PSN
)

func (h *BTH) parse(b []byte) {
	_ = b[11]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&0x80 != 0
	h.MigReq = b[1]&0x40 != 0
	h.Pad = b[1] & padMask >> 4
	h.TVer = b[1] & 0xf
	h.PKey = binary.BigEndian.Uint16(b[2:])
	w := binary.BigEndian.Uint32(b[4:])
	h.FECN = w>>31 != 0
	h.BECN = w>>30&1 != 0
	h.Reserved6 = uint8(w >> 24 & 0x3f)
	h.DestQP = w & 0xffffff
	w = binary.BigEndian.Uint32(b[8:])
	h.AckReq = w&ackReqBit != 0
	h.Reserved7 = uint8(w >> 24 & 0x7f)
	h.PSN = w & 0xffffff
}

func (h *BTH) put(b []byte) {
	_ = b[11]
	b[0] = byte(h.Opcode)
	f := h.Pad<<4&padMask | h.TVer&0xf
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
		w |= ackReqBit
	}
	binary.BigEndian.PutUint32(b[8:], w)
}

// The order is that on the wire: XRCETH and DETH first, FETH before RETH, RETH before ImmDt.
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

// Put writes the BTH and the extended headers of h.Opcode to b and returns their length. b needs
// room for MaxHeaderLen bytes. For an unassigned opcode Put writes only the BTH.
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
