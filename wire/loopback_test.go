package wire

import (
	"fmt"
	"testing"
)

var aToA = &Path{Src: addrA, Dst: addrA, DstMAC: [6]byte{2, 0, 0, 0, 0, 1}}

// loopbackAt returns a LoopbackLink for addrA on a fabric, and its peer.
func loopbackAt() (*LoopbackLink, *FabricLink) {
	f := NewFabric()
	inner := f.NewLink("engine", addrA)
	return NewLoopbackLink(inner, func(s Station) bool { return s == Station{Addr: addrA} }), f.NewLink("engine", addrB)
}

func TestLoopbackKeepsLocalTrafficOffTheLink(t *testing.T) {
	l, peer := loopbackAt()
	payload := []byte("stays where it is...")
	mustSend(t, l, 1, frame(aToA, 0, payload), frame(aToB, 1, nil), frame(aToA, 2, nil), frame(aToA, 3, nil))
	if got := fmt.Sprint(psns(t, receive(t, peer, 2))); got != "[1]" {
		t.Errorf("the peer received %v", got)
	}
	if l.NextDeadline() == 0 {
		t.Error("NextDeadline is 0 with looped-back frames")
	}
	var rx [2]RxFrame
	if n, _ := l.Receive(2, rx[:]); n != 2 || &rx[0].Tail[0][0] != &payload[0] || rx[0].SrcMAC != aToA.DstMAC {
		t.Errorf("received %d frames, first %+v", n, rx[0])
	}
	if got := fmt.Sprint(psns(t, receive(t, l, 3))); got != "[3]" {
		t.Errorf("next: %v", got)
	}
	if c := l.Counters(); c.TxPackets != 4 || c.RxPackets != 3 {
		t.Errorf("counters %+v", c)
	}
	if l.NextDeadline() != 0 {
		t.Error("NextDeadline is set with an empty ring")
	}
}

func TestLoopbackReceivesFromLinkAndRing(t *testing.T) {
	l, peer := loopbackAt()
	for range 3 {
		mustSend(t, l, 1, frame(aToA, 0, nil), frame(aToA, 1, nil))
		mustSend(t, peer, 1, frame(&Path{Src: addrB, Dst: addrA}, 2, nil))
		if got := receive(t, l, 2); len(got) != 3 {
			t.Errorf("received %v", psns(t, got))
		}
	}
}

func TestLoopbackFullRingTakesFewerFrames(t *testing.T) {
	l, _ := loopbackAt()
	l.ring.limit = 2
	batch := []TxFrame{frame(aToA, 0, nil), frame(aToB, 1, nil), frame(aToA, 2, nil), frame(aToA, 3, nil)}
	if n, _ := l.Send(1, batch); n != 3 {
		t.Errorf("took %d", n)
	}
	receive(t, l, 2)
	mustSend(t, l, 2, batch[3])
}

func TestLoopbackDropsTooLongFrames(t *testing.T) {
	l, _ := loopbackAt()
	mustSend(t, l, 1, frame(aToA, 0, make([]byte, fabricMTU)))
	if c := l.Counters(); c.Drops[DropTooLong] != 1 || len(receive(t, l, 2)) != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestLoopbackDoesNotAllocate(t *testing.T) {
	l, _ := loopbackAt()
	tx := []TxFrame{frame(aToA, 0, make([]byte, 4096)), frame(aToA, 1, nil)}
	var rx [4]RxFrame
	round := func() {
		l.Send(1, tx)
		l.Receive(1, rx[:])
		l.Receive(1, rx[:])
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
