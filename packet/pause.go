package packet

import "encoding/binary"

// Priorities is the number of priorities of Ethernet.
const Priorities = 8

// A Pause is a pause frame of priority flow control (IEEE 802.1Qbb).
type Pause struct {
	SrcMAC  [6]byte            // of the port that sends it
	Classes uint8              // class-enable vector: a bit for each priority that the frame concerns
	Quanta  [Priorities]uint16 // how long each of these pauses, in units of 512 bit times; 0 ends its pause
}

const (
	etherTypeMACControl = 0x8808
	opcodePFC           = 0x0101

	// Offsets of the fields behind the Ethernet header, and the length with the padding to the
	// shortest frame, without the FCS.
	pauseOpcode  = EthernetLen
	pauseClasses = pauseOpcode + 2
	pauseQuanta  = pauseClasses + 2
	pauseLen     = 60
)

// pauseMAC is the destination of all pause frames, which switches do not forward.
var pauseMAC = [6]byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x01}

// AppendFrame appends the Ethernet frame, without its FCS, to b.
func (p *Pause) AppendFrame(b []byte) []byte {
	var f [pauseLen]byte
	be := binary.BigEndian
	copy(f[:], pauseMAC[:])
	copy(f[6:], p.SrcMAC[:])
	be.PutUint16(f[12:], etherTypeMACControl)
	be.PutUint16(f[pauseOpcode:], opcodePFC)
	be.PutUint16(f[pauseClasses:], uint16(p.Classes))
	for i, q := range p.Quanta {
		be.PutUint16(f[pauseQuanta+2*i:], q)
	}
	return append(b, f[:]...)
}

// ParsePause parses an Ethernet frame. ok is false if it is not a pause frame of priority flow
// control. The high byte of the class-enable vector is reserved, and ignored.
func ParsePause(frame []byte) (p Pause, ok bool) {
	be := binary.BigEndian
	if len(frame) < pauseQuanta+2*len(p.Quanta) || be.Uint16(frame[12:]) != etherTypeMACControl || be.Uint16(frame[pauseOpcode:]) != opcodePFC {
		return Pause{}, false
	}
	copy(p.SrcMAC[:], frame[6:])
	p.Classes = uint8(be.Uint16(frame[pauseClasses:]))
	for i := range p.Quanta {
		p.Quanta[i] = be.Uint16(frame[pauseQuanta+2*i:])
	}
	return p, true
}
