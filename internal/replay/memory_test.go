package replay

import (
	"testing"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// Bytes that the capture lacks take no memory, wherever a request writes them.
func TestUnknownBytesTakeNoMemory(t *testing.T) {
	var l views
	m := newShadow(&l)
	const size, captured = 4096, 10
	for i := range uint64(100) {
		addr := i << 20
		m.copyOut(addr, size)
		l.writeBack()
		p := &capture.Packet{Payload: make([]byte, size)}
		p.Length, p.Data = size+packet.ICRCLen, make([]byte, captured)
		m.markWritten(addr, conversation.NewTransmission(p, 0))
	}
	if len(m.pages) > 100 {
		t.Errorf("%d pages of %d bytes for 100 WRITEs with %d captured bytes each", len(m.pages), pageBytes, captured)
	}
}
