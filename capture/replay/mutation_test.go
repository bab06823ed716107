package replay_test

import (
	"slices"
	"testing"

	"softroce/capture"
	"softroce/packet"
)

// altered returns a copy of a packet with other headers or payload, and the ICRC that goes with them.
func altered(t testing.TB, p *capture.Packet, change func(h *packet.Header, payload []byte)) *capture.Packet {
	t.Helper()
	h, payload := p.Header, slices.Clone(p.Payload)
	change(&h, payload)
	var tx packet.Tx
	tx.Set(&h, payload)
	r := p.Record
	r.Data = packet.AppendFrame(nil, &p.Addressing, &tx)
	q, err := capture.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
