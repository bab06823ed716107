package nic

import (
	"bytes"
	"testing"

	"softroce/internal/abi"
	"softroce/transport"
)

// A completion keeps nothing of what was in its slot.
func TestCompletionReplacesWhatWasInItsSlot(t *testing.T) {
	mem := bytes.Repeat([]byte{0xff}, abi.RingSize(1, abi.CQESize))
	clear(mem[:abi.RingSlots])
	r, err := newRing("completion", mem, 1, abi.CQESize)
	if err != nil {
		t.Fatal(err)
	}
	q := &CQ{ring: r}
	q.write(&Engine{}, &QP{device: &Device{whole: &whole{}}, qpn: 17}, &transport.Completion{WRID: 1 << 40})
	var got abi.CQE
	if got.Parse(mem[abi.RingSlots:]); got != (abi.CQE{WRID: 1 << 40, QPN: 17}) {
		t.Errorf("the slot is %+v", got)
	}
}
