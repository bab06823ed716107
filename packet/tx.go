package packet

// Tx is one packet to send, from BTH to pad. The payload is gathered from where
// it lies; a link adds Ethernet, IP and UDP before, and the ICRC behind.
//
// Head and Payload keep their storage from one use to the next, so that filling
// a Tx again allocates nothing.
type Tx struct {
	Head    [MaxHeaderLen]byte // BTH and extended headers
	HeadLen uint8
	Pad     uint8    // zero bytes after the payload
	Payload [][]byte // in order; no slice is empty
	Len     int      // bytes from BTH to pad: HeadLen + payload + Pad
}

// Set fills t with the headers h and the payload p, and computes the pad, which it
// also writes to h. p may be nil.
func (t *Tx) Set(h *Header, p ...[]byte) {
	t.Begin()
	for _, s := range p {
		t.Add(s)
	}
	t.Finish(h)
}

// Begin empties t.
func (t *Tx) Begin() { t.Payload, t.Len = t.Payload[:0], 0 }

// Add appends a slice of payload. It is not copied: it must stay as it is until the
// packet is sent.
func (t *Tx) Add(p []byte) {
	if len(p) > 0 {
		t.Payload = append(t.Payload, p)
		t.Len += len(p)
	}
}

// Finish computes the pad and writes the headers; call it after the last Add.
func (t *Tx) Finish(h *Header) {
	h.Pad = uint8(-t.Len & 3)
	t.Pad = h.Pad
	t.HeadLen = uint8(h.Put(t.Head[:]))
	t.Len += int(t.HeadLen) + int(t.Pad)
}
