package transport

import (
	"slices"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

func TestAWRITEStaysInsideWhatItsRETHNamed(t *testing.T) {
	_, b := connect(t, usual)
	b.request(packet.WriteFirst, usual.psn, 1024, reth(sideBase, 8))
	if got := b.say(usual.psn); got != "ACKNOWLEDGE+0/61/0" {
		t.Error(got)
	}
}

func TestAWRITEEndsWithItsRegion(t *testing.T) {
	_, b := connect(t, usual)
	b.request(packet.WriteFirst, usual.psn, 1024, quiet, reth(sideBase, 2048))
	b.table.Deregister(b.region)
	b.request(packet.WriteLast, packet.PSNAdd(usual.psn, 1), 1024)
	if got := b.say(usual.psn); got != "ACKNOWLEDGE+1/62/0" || !slices.Contains(b.events, ib.EventQPAccessErr) {
		t.Errorf("%s, events %v", got, b.events)
	}
}

func TestAnACKNeverOvertakesTheREADsBeforeIt(t *testing.T) {
	_, b := connect(t, usual)
	b.room = 0
	b.request(packet.ReadRequest, usual.psn, 0, reth(sideBase, 2000))
	b.request(packet.WriteOnly, packet.PSNAdd(usual.psn, 2), 0)
	for _, b.room = range []int{1, -1} {
		b.qp.Transmit(&b.env)
	}
	if got := b.say(usual.psn); got != "READ_RESPONSE_FIRST+0/ack/1 READ_RESPONSE_LAST+1/ack/1 ACKNOWLEDGE+2/ack/2" {
		t.Error(got)
	}
}

func TestNewREADsHaveRoomHoweverManyAreRepeated(t *testing.T) {
	_, b := connect(t, usual) // 4
	b.request(packet.ReadRequest, usual.psn, 0)
	b.say(usual.psn)
	b.room = 0
	for range 20 {
		b.request(packet.ReadRequest, usual.psn, 0)
	}
	for i := range 4 {
		b.request(packet.ReadRequest, packet.PSNAdd(usual.psn, 1+i), 0)
	}
	b.room = -1
	b.qp.Transmit(&b.env)
	if got := b.say(usual.psn); b.qp.State() != ib.QPSRTS || !strings.HasSuffix(got, "+4/ack/5") {
		t.Errorf("%s in %v", got, b.qp.State())
	}
}

func TestAReceiveWithoutPlaceForItsDataIsARemoteOperationalError(t *testing.T) {
	_, b := connect(t, usual)
	b.rq.wrs = []RecvWR{{1, []SGE{{Addr: sideBase, Length: 100, LKey: 1}}}}
	b.request(packet.SendOnly, usual.psn, 8)
	if got := b.say(usual.psn); got != "ACKNOWLEDGE+0/63/0" || statuses(b.done) != "1:4" {
		t.Errorf("%s, completions %s", got, statuses(b.done))
	}
}

func TestOperationsWithoutTheirContentsAreInvalidRequests(t *testing.T) {
	for _, op := range []uint8{packet.Flush, packet.AtomicWrite} {
		_, b := connect(t, usual)
		b.recv(1, 0, 100)
		b.request(op, usual.psn, 0)
		if got := b.say(usual.psn); got != "ACKNOWLEDGE+0/61/0" {
			t.Errorf("%v: %s", packet.Opcode(op), got)
		}
		_, b = connect(t, usual)
		b.request(op, packet.PSNAdd(usual.psn, -1), 0) // a duplicate
		if got := b.say(usual.psn); b.qp.State() != ib.QPSRTS {
			t.Errorf("duplicate %v: %s", packet.Opcode(op), got)
		}
	}
	_, b := connect(t, usual)
	b.request(uint8(packet.UC)|packet.SendOnly, usual.psn, 0)
	if b.count.Drops[DropService] != 1 || len(b.out) > 0 {
		t.Errorf("UC packet: drops %v", b.count.Drops)
	}
}
