package packet

import "encoding/binary"

// Tx is a packet to send, from BTH to pad. Payload refers to the data without copying it. A link
// adds the Ethernet, IP and UDP headers and the ICRC.
//
// Head and Payload keep their storage between uses, so that filling a Tx again does not allocate.
type Tx struct {
	Head    [MaxHeaderLen]byte // BTH and extended headers
	HeadLen uint8
	Pad     uint8 // number of zero bytes after the payload
	Run     Run
	Payload [][]byte // in order, without empty slices
	Len     int      // length from BTH to pad: HeadLen + payload + Pad
}

// Set fills t with the headers h and the payload p. It computes the pad count and stores it in h. p
// may be empty.
func (t *Tx) Set(h *Header, p ...[]byte) {
	t.Begin()
	for _, s := range p {
		t.Add(s)
	}
	t.Finish(h)
}

// Begin empties t.
func (t *Tx) Begin() { t.Payload, t.Len, t.Run = t.Payload[:0], 0, Run{} }

// Add appends p to the payload without copying it. p must not change until the packet is sent.
func (t *Tx) Add(p []byte) {
	if len(p) > 0 {
		t.Payload = append(t.Payload, p)
		t.Len += len(p)
	}
}

// Finish computes the pad count and writes the headers. It follows the last Add.
func (t *Tx) Finish(h *Header) {
	h.Pad = uint8(-t.Len & 3)
	t.Pad = h.Pad
	t.HeadLen = uint8(h.Put(t.Head[:]))
	t.Len += int(t.HeadLen) + int(t.Pad)
}

// FinishRun is Finish for the first packet of a run. What was added is the payload of all packets,
// of which each has an equal part that needs no pad.
func (t *Tx) FinishRun(h *Header, r Run) {
	t.Len, t.Run = t.Len/r.Packets(), r
	t.Finish(h)
}

// A Run says that a packet stands for consecutive packets of one message of the service RC: FIRST
// or MIDDLE, then MIDDLE, and LAST if the run ends the message. It has the headers of the first of
// them, which has no AckReq, and the payload of all. Each has an equal part.
type Run struct {
	Repeat uint16 // how many more packets there are; 0: it is no run
	Ends   bool   // the last one is LAST, without immediate data, and requests an ACK
}

// Packets returns the number of packets.
func (r Run) Packets() int { return 1 + int(r.Repeat) }

// Opcodes returns the opcodes of the packets after the first one, which has the opcode first, and
// of the last one.
func (r Run) Opcodes(first Opcode) (middle, last Opcode) {
	if middle = first; first.Info().Position == First {
		middle++
	}
	if last = middle; r.Ends {
		last++
	}
	return middle, last
}

// Extend adds the packet that begins with next to the run, if it continues the run whose first
// packet begins with head, and reports whether it did. Apart from length and addresses, the packets
// of such a run are what Header makes of head. A SEND has runs of MIDDLE only.
func (r *Run) Extend(head, next []byte) bool {
	be := binary.BigEndian
	if r.Ends || min(len(head), len(next)) < BTHLen || head[1]&padMask != 0 || be.Uint32(head[8:])&ackReqBit != 0 {
		return false
	}
	if first := Opcode(head[0]); first != WriteFirst && first != WriteMiddle && first != SendMiddle {
		return false
	}
	longer := Run{Repeat: r.Repeat + 1, Ends: next[0] == WriteLast}
	opcode, psn := longer.bth(head, int(longer.Repeat))
	if byte(opcode) != next[0] || be.Uint64(head)<<8 != be.Uint64(next)<<8 || psn != be.Uint32(next[8:]) {
		return false
	}
	*r = longer
	return true
}

// Header writes the headers of the k-th packet to b and returns their length. head are those of the
// first one.
func (r Run) Header(b, head []byte, k int) int {
	n := copy(b, head)
	if k == 0 {
		return n
	}
	opcode, psn := r.bth(head, k)
	b[0] = byte(opcode)
	binary.BigEndian.PutUint32(b[8:], psn)
	return BTHLen
}

// bth returns how the BTH of the k-th packet, which is not the first one, differs from that of the
// first one: its opcode, and the word of AckReq and PSN.
func (r Run) bth(head []byte, k int) (opcode Opcode, psn uint32) {
	middle, last := r.Opcodes(Opcode(head[0]))
	w := binary.BigEndian.Uint32(head[8:])
	w = w&^PSNMask | (w+uint32(k))&PSNMask
	if r.Ends && k == int(r.Repeat) {
		return last, w | ackReqBit
	}
	return middle, w
}
