package verbs_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestUCOperations(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{Type: verbs.UC}.Connect(t, a, b)
	for _, n := range []int{0, 1, 1000, 20000} {
		fill(x.Buf[:n], uint64(n))
		y.Recv(1, 30000, n)
		x.Send(verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: 9, SGList: x.SGE(0, n)})
		x.Completion()
		if wc := y.Completion(); wc.ByteLen != uint32(n) || wc.Imm != 9 {
			t.Fatalf("completion %+v", wc)
		}
		same(t, "SEND", y.Buf[30000:30000+n], x.Buf[:n])
		y.Recv(2, 0, 0)
		x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Imm: 8, SGList: x.SGE(0, n), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
		x.Completion()
		if wc := y.Completion(); wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ByteLen != uint32(n) {
			t.Fatalf("completion %+v", wc)
		}
		same(t, "WRITE", y.Buf[:n], x.Buf[:n])
	}
	// An operation that UC does not support takes the queue pair to SQE, from which it returns to
	// RTS.
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: x.SGE(0, 8)})
	x.Failure(verbs.WCLocQPOpErr)
	if got, err := x.Query(t.Context()); err != nil || got.QPState != verbs.QPSSQE {
		t.Fatalf("state %v, %v", got.QPState, err)
	}
	if err := x.Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSRTS}, verbs.QPMaskState); err != nil {
		t.Fatal(err)
	}
	y.Recv(3, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	x.Completion()
	y.Completion()
}

// UCX sets the flow label 0xffffffff, of which drivers use the low 20 bits.
func TestFlowLabelIsMaskedTo20Bits(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{Type: verbs.UD}.New(t, a), verbstest.EndpointConfig{Type: verbs.UD}.New(t, b)
	if err := errors.Join(x.ToDatagram(t.Context(), verbstest.QKey), y.ToDatagram(t.Context(), verbstest.QKey)); err != nil {
		t.Fatal(err)
	}
	const label = 0xfffabcde
	gids, err := y.Context.GIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ah, err := x.PD.CreateAH(t.Context(), verbs.AHAttr{PortNum: 1, GRH: verbs.GlobalRoute{DGID: gids[0].GID, FlowLabel: label}})
	if err != nil {
		t.Fatal(err)
	}
	y.Recv(0, 0, 1000)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 10), AH: ah, RemoteQPN: y.QPNum(), RemoteQKey: verbstest.QKey})
	x.Completion()
	y.Completion()
	if g := (*verbs.GRH)(y.Buf); g.Is4() || g.FlowLabel() != label&0xfffff {
		t.Errorf("flow label of a datagram from %v: %#x", g.Src(), g.FlowLabel())
	}
}

func TestUDSendAndReply(t *testing.T) {
	for _, process := range []bool{false, true} {
		a, b := verbstest.Pair(t)
		e := verbstest.EndpointConfig{Type: verbs.UD, Process: process}
		x, y := e.New(t, a), e.New(t, b)
		if err := errors.Join(x.ToDatagram(t.Context(), verbstest.QKey), y.ToDatagram(t.Context(), verbstest.QKey)); err != nil {
			t.Fatal(err)
		}
		ah := x.AH(y.Info.GID)
		for i := range 4 {
			y.Recv(uint64(i), i*1000, 1000)
		}
		for i := range 4 {
			fill(x.Buf[i*500:][:500], uint64(i))
			x.Send(verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: uint32(i), SGList: x.SGE(i*500, 500), AH: ah, RemoteQPN: y.QPNum(), RemoteQKey: verbstest.QKey})
		}
		x.Completions(4)
		var first verbs.WC
		for i, wc := range y.Completions(4) {
			if wc.Err() != nil || wc.ByteLen != 540 || wc.SrcQP != x.QPNum() || wc.WCFlags != verbs.WCWithGRH|verbs.WCWithImm || wc.Imm != uint32(i) {
				t.Fatalf("completion %+v", wc)
			}
			g := (*verbs.GRH)(y.Buf[i*1000:])
			if g.Src() != x.Info.GID.Addr() || g.Dst() != y.Info.GID.Addr() {
				t.Fatalf("datagram from %v to %v", g.Src(), g.Dst())
			}
			same(t, "datagram", y.Buf[i*1000+verbs.GRHLen:][:500], x.Buf[i*500:][:500])
			first = wc
		}
		back, err := y.PD.CreateAHFromWC(t.Context(), &first, y.Buf[3000:])
		if err != nil {
			t.Fatal(err)
		}
		x.Recv(7, 0, 100)
		y.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: y.SGE(0, 8), AH: back, RemoteQPN: first.SrcQP, RemoteQKey: 1 << 31})
		y.Completion()
		if wc := x.Completion(); wc.ByteLen != 48 || wc.SrcQP != y.QPNum() {
			t.Fatalf("completion %+v", wc)
		}
		if err := errors.Join(ah.Close(t.Context()), back.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAddressHandleOfAnotherPDFailsWorkRequest(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, other := verbstest.Datagram(t, a), verbstest.Datagram(t, a)
	y := verbstest.Datagram(t, b)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, AH: other.AH(y.Info.GID), RemoteQPN: y.QPNum()})
	x.Failure(verbs.WCLocQPOpErr)
	if err := x.PostSend(verbs.SendWR{Opcode: verbs.WRSend}); !errors.Is(err, verbs.ErrWorkRequest) {
		t.Errorf("posting without an address handle: %v", err)
	}
}

func TestMulticastReachesAttachedQPs(t *testing.T) {
	f := verbstest.New(t, verbstest.WithNICs(3), verbstest.WithEngines(2))
	group := verbs.GroupGID(netip.MustParseAddr("239.7.7.7"))
	var endpoints []*verbstest.Endpoint
	for i := range 3 {
		x := verbstest.Datagram(t, f.Open(i))
		if err := x.AttachMcast(t.Context(), group); err != nil {
			t.Fatal(err)
		}
		x.Recv(uint64(i), 0, 1000)
		endpoints = append(endpoints, x)
	}
	from := endpoints[0]
	fill(from.Buf[2000:2100], 3)
	from.Send(verbs.SendWR{WRID: 9, Opcode: verbs.WRSend, SGList: from.SGE(2000, 100), AH: from.AH(group), RemoteQPN: verbs.MulticastQPN, RemoteQKey: verbstest.QKey})
	if wc := from.Completion(); wc.WRID != 9 {
		t.Fatalf("the sender received its own datagram: %+v", wc)
	}
	for _, x := range endpoints[1:] {
		if wc := x.Completion(); wc.ByteLen != 140 || wc.SrcQP != from.QPNum() {
			t.Fatalf("completion %+v", wc)
		}
		if g := (*verbs.GRH)(x.Buf); g.Dst() != group.Addr() {
			t.Errorf("destination of the datagram: %v", g.Dst())
		}
		same(t, "datagram", x.Buf[40:140], from.Buf[2000:2100])
	}
	if err := endpoints[1].Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing an attached queue pair: %v", err)
	}
	if err := errors.Join(endpoints[1].DetachMcast(t.Context(), group), endpoints[1].Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	rc := verbstest.EndpointConfig{}.New(t, endpoints[0].Context)
	if err := rc.AttachMcast(t.Context(), group); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attaching an RC queue pair: %v", err)
	}
	if err := endpoints[2].DetachMcast(t.Context(), verbs.GroupGID(netip.MustParseAddr("239.7.7.8"))); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("detaching from a group that was not attached: %v", err)
	}
}
