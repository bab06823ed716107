package cm

import (
	"encoding/binary"
	"errors"

	"softroce/internal/ib"
)

// Constants of management datagrams.
const (
	MADSize = ib.MADSize
	GSIQPN  = ib.GSIQPN
	GSIQKey = ib.GSIQKey
)

// Values of the common MAD header.
const (
	headerSize  = 24
	baseVersion = 1

	ClassCM      = ib.ClassCM
	classVersion = 2

	MethodGet      = 0x01
	MethodSet      = 0x02
	MethodSend     = 0x03
	MethodResponse = 0x80 // set in replies
)

// Values of a MAD's status (IBTA 13.4.7), for requests that are not supported.
const (
	StatusBadVersion  = 1 << 2 // the class or its version is not supported
	StatusBadMethod   = 2 << 2
	StatusBadAttrPair = 3 << 2 // the method does not support the attribute
)

// An Attribute is the attribute ID of a MAD, which names the message of the connection manager
// (IBTA 12.6).
type Attribute = ib.CMAttribute

// Attribute IDs.
const (
	AttrREQ     = ib.CMREQ
	AttrMRA     = ib.CMMRA
	AttrREJ     = ib.CMREJ
	AttrREP     = ib.CMREP
	AttrRTU     = ib.CMRTU
	AttrDREQ    = ib.CMDREQ
	AttrDREP    = ib.CMDREP
	AttrSIDRREQ = ib.CMSIDRREQ
	AttrSIDRREP = ib.CMSIDRREP
	AttrLAP     = ib.CMLAP
	AttrAPR     = ib.CMAPR
)

// Errors of Parse; match with errors.Is.
var (
	ErrSize      = errors.New("MAD is not 256 bytes long")
	ErrVersion   = errors.New("MAD has another base or class version")
	ErrClass     = errors.New("MAD has another management class")
	ErrMethod    = errors.New("MAD has another method than Send")
	ErrAttribute = errors.New("MAD is not a message of the connection manager")
)

// Header is the common MAD header.
type Header struct {
	BaseVersion   uint8
	Class         uint8
	ClassVersion  uint8
	Method        uint8
	Status        uint16
	ClassSpecific uint16
	TID           uint64 // transaction ID
	Attribute     Attribute
	Modifier      uint32
}

// ParseHeader reads the header of any MAD. The error is ErrSize.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) != MADSize {
		return h, ErrSize
	}
	be := binary.BigEndian
	return Header{
		BaseVersion: b[0], Class: b[1], ClassVersion: b[2], Method: b[3], Status: be.Uint16(b[4:]),
		ClassSpecific: be.Uint16(b[6:]), TID: be.Uint64(b[8:]), Attribute: Attribute(be.Uint16(b[16:])),
		Modifier: be.Uint32(b[20:]),
	}, nil
}

// Put writes the header to the first 24 bytes of b.
func (h *Header) Put(b []byte) {
	be := binary.BigEndian
	b[0], b[1], b[2], b[3] = h.BaseVersion, h.Class, h.ClassVersion, h.Method
	be.PutUint16(b[4:], h.Status)
	be.PutUint16(b[6:], h.ClassSpecific)
	be.PutUint64(b[8:], h.TID)
	be.PutUint16(b[16:], uint16(h.Attribute))
	be.PutUint16(b[18:], 0)
	be.PutUint32(b[20:], h.Modifier)
}

// A Message is a message of the connection manager: *REQ, *MRA and so on.
type Message interface {
	Attribute() Attribute
	fields(*codec)
}

// Parse reads a MAD of the connection manager. After an error other than ErrSize the header is
// valid.
func Parse(b []byte) (Header, Message, error) {
	h, err := ParseHeader(b)
	switch {
	case err != nil:
		return h, nil, err
	case h.BaseVersion != baseVersion:
		return h, nil, ErrVersion
	case h.Class != ClassCM:
		return h, nil, ErrClass
	case h.ClassVersion != classVersion:
		return h, nil, ErrVersion
	case h.Method != MethodSend:
		return h, nil, ErrMethod
	}
	m := newMessage(h.Attribute)
	if m == nil {
		return h, nil, ErrAttribute
	}
	m.fields(&codec{b: b[headerSize:]})
	return h, m, nil
}

// Put writes the MAD of a message. tid is its transaction ID, modifier the attribute modifier.
func Put(b *[MADSize]byte, tid uint64, modifier uint32, m Message) {
	*b = [MADSize]byte{}
	h := Header{BaseVersion: baseVersion, Class: ClassCM, ClassVersion: classVersion, Method: MethodSend,
		TID: tid, Attribute: m.Attribute(), Modifier: modifier}
	h.Put(b[:])
	m.fields(&codec{b: b[headerSize:], put: true})
}

// UnsupportedReply writes the reply to a MAD that is not supported, and reports whether there is
// one: a Get or Set gets a reply, other methods do not.
func UnsupportedReply(b []byte, reply *[MADSize]byte) bool {
	h, err := ParseHeader(b)
	if err != nil || h.BaseVersion != baseVersion || h.Method != MethodGet && h.Method != MethodSet {
		return false
	}
	h.Method = MethodGet | MethodResponse // the reply to a Set is a GetResp too
	switch {
	case h.Class != ClassCM || h.ClassVersion != classVersion:
		h.Status = StatusBadVersion
	default:
		h.Status = StatusBadAttrPair
	}
	copy(reply[:], b)
	h.Put(reply[:])
	return true
}

// A codec visits the fields of a message. It reads them from b or, if put is set, writes them to b,
// which is zero before. So each layout is written once.
type codec struct {
	b   []byte
	put bool
}

// bits is a field of n bits that begins at a bit of byte off, counted from the most significant
// one.
func bits[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *codec, off, bit, n int, v *T) {
	at := off*8 + bit
	if !c.put {
		var x uint64
		for i := at; i < at+n; i++ {
			x = x<<1 | uint64(c.b[i/8]>>(7-i%8)&1)
		}
		*v = T(x)
		return
	}
	x := uint64(*v)
	for i := at + n - 1; i >= at; i-- {
		c.b[i/8] |= byte(x&1) << (7 - i%8)
		x >>= 1
	}
}

// flag is a field of one bit.
func (c *codec) flag(off, bit int, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	bits(c, off, bit, 1, &n)
	*v = n != 0
}

// bytes is a field of whole bytes.
func (c *codec) bytes(off int, v []byte) {
	if c.put {
		copy(c.b[off:], v)
	} else {
		copy(v, c.b[off:])
	}
}
