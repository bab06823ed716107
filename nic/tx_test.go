package nic

import (
	"testing"

	"softroce/packet"
	"softroce/wire"
)

// A run that a stalled link does not take is as many lost packets as it stands for.
func TestWaitingRunsCountAsTheirPackets(t *testing.T) {
	b := frameBatch{sent: 1, filled: 3, frames: make([]wire.TxFrame, 4)}
	for i := range b.frames {
		b.frames[i].Run = packet.Run{Repeat: uint16(i)}
	}
	if n := b.waitingPackets(); n != 2+3 {
		t.Errorf("%d packets, want 5", n)
	}
}
