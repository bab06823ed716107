package transport

import (
	"slices"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

func TestWriteStaysInsideItsRETHRange(t *testing.T) {
	_, b := connect(t, defaults)
	b.request(packet.WriteFirst, defaults.psn, 1024, reth(sideBase, 8))
	if got, want := b.emitted(defaults.psn), "ACKNOWLEDGE+0/61/0"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestWriteFailsWhenItsRegionIsDeregistered(t *testing.T) {
	_, b := connect(t, defaults)
	b.request(packet.WriteFirst, defaults.psn, 1024, noAckReq, reth(sideBase, 2048))
	b.table.Deregister(b.region)
	b.request(packet.WriteLast, packet.PSNAdd(defaults.psn, 1), 1024)
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+1/62/0" || !slices.Contains(b.events, ib.EventQPAccessErr) {
		t.Errorf("%s, events %v", got, b.events)
	}
}

func TestACKFollowsEarlierReadResponses(t *testing.T) {
	_, b := connect(t, defaults)
	b.room = 0
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 2000))
	b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, 2), 0)
	for _, b.room = range []int{1, -1} {
		b.qp.Transmit(&b.env)
	}
	if got, want := b.emitted(defaults.psn), "READ_RESPONSE_FIRST+0/ack/1 READ_RESPONSE_LAST+1/ack/1 ACKNOWLEDGE+2/ack/2"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestDuplicateReadsLeaveRoomForNewReads(t *testing.T) {
	_, b := connect(t, defaults) // 4
	b.request(packet.ReadRequest, defaults.psn, 0)
	b.emitted(defaults.psn)
	b.room = 0
	for range 20 {
		b.request(packet.ReadRequest, defaults.psn, 0)
	}
	for i := range 4 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 1+i), 0)
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	if got := b.emitted(defaults.psn); b.qp.State() != ib.QPSRTS || !strings.HasSuffix(got, "+4/ack/5") {
		t.Errorf("%s in %v", got, b.qp.State())
	}
}

// A READ is accepted between two duplicates that arrive in the opposite order.
func TestRepeatedResponsesCarryOneMSN(t *testing.T) {
	_, b := connect(t, defaults)
	b.request(packet.ReadRequest, defaults.psn, 0)
	b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 1), 0)
	b.emitted(defaults.psn)
	b.room = 0
	for _, psn := range []int{1, 2, 0} {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, psn), 0)
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	if got, want := b.emitted(defaults.psn), "READ_RESPONSE_ONLY+0/ack/3 READ_RESPONSE_ONLY+1/ack/3 READ_RESPONSE_ONLY+2/ack/3"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

// TestRepeatedReadStaysOutstanding repeats a READ that is not answered yet: it still counts against
// max_dest_rd_atomic.
func TestRepeatedReadStaysOutstanding(t *testing.T) {
	_, b := connect(t, defaults) // 4
	b.room = 0
	for i := range 4 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, i), 0)
	}
	for i := range 4 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, i), 0)
	}
	if b.qp.State() != ib.QPSRTS {
		t.Fatalf("duplicates lead to %v", b.qp.State())
	}
	b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 4), 0)
	if b.qp.State() != ib.QPSErr {
		t.Error("a fifth READ was accepted")
	}
}

func TestReceiveWithInvalidMemoryDrawsRemoteOperationalNAK(t *testing.T) {
	_, b := connect(t, defaults)
	b.rq.wrs = []RecvWR{{ID: 1, SGEs: []SGE{{Addr: sideBase, Length: 100, LKey: 1}}}}
	b.request(packet.SendOnly, defaults.psn, 8)
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/63/0" || statuses(b.done) != "1:4" {
		t.Errorf("%s, completions %s", got, statuses(b.done))
	}
}

func TestResponderRejectsMalformedOperations(t *testing.T) {
	for _, op := range []uint8{packet.Flush, packet.AtomicWrite} {
		_, b := connect(t, defaults)
		b.recv(1, 0, 100)
		b.request(op, defaults.psn, 0)
		if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/61/0" {
			t.Errorf("%v: emitted %s", packet.Opcode(op), got)
		}
		_, b = connect(t, defaults)
		b.request(op, packet.PSNAdd(defaults.psn, -1), 0) // a duplicate
		if got := b.emitted(defaults.psn); b.qp.State() != ib.QPSRTS {
			t.Errorf("duplicate %v: %s", packet.Opcode(op), got)
		}
	}
	_, b := connect(t, defaults)
	b.request(uint8(packet.UC)|packet.SendOnly, defaults.psn, 0)
	if b.count.Drops[DropService] != 1 || len(b.out) > 0 {
		t.Errorf("UC packet: drops %v", b.count.Drops)
	}
}
