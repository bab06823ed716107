package conversation_test

import (
	"testing"

	"softroce/internal/conversation"
	"softroce/packet"
)

// part returns a request with a PSN, and the length of its RETH.
func part(op packet.Opcode, seq int64, length uint32, mtu, atLeast int) conversation.Part {
	h := packet.Header{BTH: packet.BTH{Opcode: op}, RETH: packet.RETH{Length: length}}
	return conversation.NewPart(&h, seq, mtu, atLeast)
}

func TestPartTakesPSNsOfItsResponse(t *testing.T) {
	for _, c := range []struct {
		name         string
		op           packet.Opcode
		length       uint32
		mtu, atLeast int
		psns, end    int64 // with the PSN 100
	}{
		{"SEND", packet.SendMiddle, 0, 1024, 1024, 1, 101},
		{"WRITE of several packets", packet.WriteFirst, 8192, 1024, 1024, 1, 101},
		{"empty READ", packet.ReadRequest, 0, 1024, 1024, 1, 101},
		{"READ of one path MTU", packet.ReadRequest, 1024, 1024, 1024, 1, 101},
		{"READ of one byte more", packet.ReadRequest, 1025, 1024, 1024, 2, 102},
		{"largest READ", packet.ReadRequest, 1 << 31, 256, 256, 1 << 23, 100 + 1<<23},
		{"READ that fits an unknown path MTU", packet.ReadRequest, 512, 0, 512, 1, 101},
		{"READ that may not fit an unknown path MTU", packet.ReadRequest, 513, 0, 512, 0, 101},
		{"atomic", packet.FetchAdd, 0, 1024, 1024, 1, 101},
	} {
		p := part(c.op, 100, c.length, c.mtu, c.atLeast)
		if p.NumPSNs != c.psns || p.End() != c.end {
			t.Errorf("%s: %d PSNs, the next is %d; want %d and %d", c.name, p.NumPSNs, p.End(), c.psns, c.end)
		}
		next := part(packet.SendOnly, c.end, 0, 0, 0)
		if want := c.psns != 0; p.Adjoins(&next) != want {
			t.Errorf("%s: adjoins PSN %d: %v, want %v", c.name, c.end, !want, want)
		}
		if next.Seq++; p.Adjoins(&next) {
			t.Errorf("%s: adjoins PSN %d", c.name, next.Seq)
		}
	}
}

func TestPartsFollowEachOtherInMessage(t *testing.T) {
	const inside, after, never = "inside a message", "as the next message", "never"
	for _, c := range []struct {
		a, b packet.Opcode
		want string
	}{
		{packet.SendFirst, packet.SendMiddle, inside},
		{packet.SendFirst, packet.SendLast, inside},
		{packet.SendMiddle, packet.SendLastImm, inside},
		{packet.SendMiddle, packet.SendLastInv, inside},
		{packet.WriteMiddle, packet.WriteLastImm, inside},
		{packet.SendLast, packet.SendFirst, after},
		{packet.SendOnly, packet.WriteFirst, after},
		{packet.ReadRequest, packet.FetchAdd, after},
		{packet.WriteLast, packet.ReadRequest, after},
		{packet.SendFirst, packet.WriteMiddle, never},
		{packet.WriteMiddle, packet.SendLast, never},
		{packet.SendFirst, packet.SendOnly, never},
		{packet.SendMiddle, packet.ReadRequest, never},
		{packet.SendOnly, packet.SendMiddle, never},
		{packet.ReadRequest, packet.SendLast, never},
		{packet.SendLast, packet.SendLast, never},
	} {
		a, b := part(c.a, 1, 0, 256, 256), part(c.b, 2, 0, 256, 256)
		got := never
		if a.FollowedBy(&b) {
			got = after
		}
		if a.ContinuedBy(&b) {
			got = inside
			if !a.FollowedBy(&b) {
				t.Errorf("%v continues %v and may not follow it", c.b, c.a)
			}
		}
		if got != c.want {
			t.Errorf("%v follows %v %s, want %s", c.b, c.a, got, c.want)
		}
	}
}

func TestPartExpectsReply(t *testing.T) {
	for op, want := range map[packet.Opcode]bool{
		packet.SendOnly: false, packet.WriteLast: false, packet.ReadRequest: true, packet.CompareSwap: true, packet.Flush: true, packet.AtomicWrite: true,
	} {
		h := packet.Header{BTH: packet.BTH{Opcode: op}}
		if p := conversation.NewPart(&h, 0, 256, 256); p.ExpectsReply() != want {
			t.Errorf("%v without AckReq expects a reply: %v", op, !want)
		}
		h.AckReq = true
		if p := conversation.NewPart(&h, 0, 256, 256); !p.ExpectsReply() {
			t.Errorf("%v with AckReq expects no reply", op)
		}
	}
}
