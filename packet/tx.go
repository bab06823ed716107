package packet

// Tx is a packet to send, from BTH to pad. Payload refers to the data without copying it. A link
// adds the Ethernet, IP and UDP headers and the ICRC.
//
// Head and Payload keep their storage between uses, so that filling a Tx again does not allocate.
type Tx struct {
	Head    [MaxHeaderLen]byte // BTH and extended headers
	HeadLen uint8
	Pad     uint8    // number of zero bytes after the payload
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
func (t *Tx) Begin() { t.Payload, t.Len = t.Payload[:0], 0 }

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
