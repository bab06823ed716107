package transport

import (
	"bytes"
	"fmt"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// datagram passes a UD SEND to s. The GRH bytes are 0xa0, 0xa1 and so on.
func (s *side) datagram(op uint8, psn uint32, n int, edit ...func(*RxPacket)) {
	grh := make([]byte, packet.GRHLen)
	for i := range grh {
		grh[i] = 0xa0 + byte(i)
	}
	edit = append([]func(*RxPacket){func(p *RxPacket) {
		p.DETH = packet.DETH{QKey: testQKey, SrcQP: 99}
		p.AckReq, p.SL, p.GRH = false, 2, grh
		for _, b := range p.Payload {
			fill(b, 5)
		}
	}}, edit...)
	s.request(uint8(packet.UD)|op, psn, n, edit...)
}

func qkey(k uint32) func(*RxPacket) { return func(p *RxPacket) { p.DETH.QKey = k } }

// TestUDResponder has port MTU 1024 and posted receives of 40+1024, 40 and 39 bytes.
func TestUDResponder(t *testing.T) {
	const only = packet.SendOnly
	for _, c := range []struct {
		name  string
		reqs  []req
		recv  string
		drops string
		state ib.QPState
	}{
		{"a datagram completes a receive", []req{on(only, 0, 1024)}, "1:0", "", ib.QPSRTS},
		{"any PSN is accepted", []req{on(only, 77, 1), on(only, 77, 0)}, "1:0 2:0", "", ib.QPSRTS},
		{"the GRH needs room too", []req{on(only, 0, 1), on(only, 0, 1), on(only, 0, 0)}, "1:0 2:0", "receive_too_short:1", ib.QPSRTS},
		{"a receive without room for the GRH is not used", []req{on(only, 0, 0), on(only, 0, 0), on(only, 0, 0)}, "1:0 2:0", "receive_too_short:1", ib.QPSRTS},
		{"wrong Q_Key", []req{on(only, 0, 1, qkey(testQKey+1))}, "", "qkey:1", ib.QPSRTS},
		{"over the port's MTU", []req{on(only, 0, 1025)}, "", "invalid_request:1", ib.QPSRTS},
		{"a request of RC", []req{on(packet.WriteOnly, 0, 1, func(p *RxPacket) { p.Opcode = packet.WriteOnly })}, "", "service:1", ib.QPSRTS},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newUD(t, 18)
			b.recv(1, 0, 1064)
			b.recv(2, 2000, 40)
			b.recv(3, 3000, 39)
			for _, r := range c.reqs {
				b.datagram(r.op, packet.PSNAdd(defaults.psn, r.psn), r.n, r.edit...)
			}
			if got := statuses(b.done); got != c.recv {
				t.Errorf("completions %q, want %q", got, c.recv)
			}
			if got := drops(&b.count); got != c.drops || b.qp.State() != c.state {
				t.Errorf("dropped %q in %v, want %q in %v", got, b.qp.State(), c.drops, c.state)
			}
			if got := b.emitted(0); got != "" {
				t.Errorf("replied %q", got)
			}
		})
	}
}

func TestUDCompletionIdentifiesSender(t *testing.T) {
	b := newUD(t, 18)
	b.recv(1, 10, 30) // the GRH spans two elements
	b.rq.wrs[0].SGEs = append(b.rq.wrs[0].SGEs, b.sge(100, 500)...)
	b.datagram(packet.SendOnlyImm, 5, 300, withImm(0xabcd), solicited)
	want := Completion{WRID: 1, Opcode: ib.WCRecv, ByteLen: 340, Imm: 0xabcd, Flags: ib.WCWithImm | ib.WCGRH, SrcQP: 99, SL: 2, Recv: true, Signaled: true, Solicited: true}
	if len(b.done) != 1 || b.done[0] != want {
		t.Fatalf("completions %+v", b.done)
	}
	data := make([]byte, 300)
	fill(data, 5)
	if b.mem[10] != 0xa0 || b.mem[39] != 0xbd || b.mem[100] != 0xbe || b.mem[109] != 0xc7 || !bytes.Equal(b.mem[110:410], data) {
		t.Errorf("GRH and payload are not in place: % x", b.mem[:128])
	}
}

func TestUDWithoutValidReceive(t *testing.T) {
	b := newUD(t, 18)
	b.datagram(packet.SendOnly, 0, 8)
	if got := drops(&b.count); got != "receiver_not_ready:1" || b.count.OutOfBuffer != 1 {
		t.Errorf("drops %q", got)
	}
	b.recv(1, 0, 100)
	b.rq.wrs[0].SGEs[0].LKey ^= 1
	b.datagram(packet.SendOnly, 0, 8)
	if got := statuses(b.done); got != "1:4" || b.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v", got, b.qp.State())
	}
}

func TestTooShortSharedReceiveCompletesInError(t *testing.T) {
	b := newUD(t, 18)
	b.rq.shared = true
	b.recv(1, 0, 50)
	b.recv(2, 0, 100)
	b.datagram(packet.SendOnly, 0, 20)
	b.datagram(packet.SendOnly, 0, 20)
	if got := statuses(b.done); got != "1:1 2:0" || b.qp.State() != ib.QPSRTS {
		t.Errorf("%s in %v", got, b.qp.State())
	}
}

func TestUDRequesterAddressesEachDatagram(t *testing.T) {
	a := newUD(t, 17)
	for i, c := range []struct {
		qpn, qkey, want uint32
	}{
		{18, testQKey, testQKey}, {0x123456, 5, 5}, {0xffffff, 0x80000001, testQKey},
	} {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRSendWithImm, Imm: 3, Dest: i, RemoteQPN: c.qpn, RemoteQKey: c.qkey, SGEs: a.sge(0, 1024)})
		a.qp.Transmit(&a.env)
		if a.qp.Destination() != i {
			t.Errorf("destination %v", a.qp.Destination())
		}
		var h packet.Header
		h.Parse(a.out[0].Head[:])
		if h.Opcode != packet.Opcode(packet.UD)|packet.SendOnlyImm || h.DestQP != c.qpn || h.DETH != (packet.DETH{QKey: c.want, SrcQP: 17}) || h.AckReq || h.Imm != 3 {
			t.Errorf("headers %+v", h)
		}
		if got, want := a.emitted(defaults.psn), fmt.Sprintf("SEND_ONLY_IMM%+d", i); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// C10-93.1.1
func TestUDDiscardsOversizedSendSuccessfully(t *testing.T) {
	a := newUD(t, 17)
	for i, n := range []int{1025, 1024} {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, Dest: 1, RemoteQPN: 18, SGEs: a.sge(0, n)})
	}
	a.qp.Transmit(&a.env)
	if got := statuses(a.done); got != "0:0 1:0" || a.emitted(defaults.psn) != "SEND_ONLY+0" || a.count.TxOverlong != 1 {
		t.Errorf("%s, %d counted", got, a.count.TxOverlong)
	}
}
