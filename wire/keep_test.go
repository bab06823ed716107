package wire

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"softroce/wire/fault"
)

// Frames that were received before KeepReceived keep their bytes, whatever arrives afterwards.
func TestKeepReceived(t *testing.T) {
	for _, program := range []string{"", "delay 1us receive"} {
		testKeepReceived(t, program, Shape{})
	}
	testKeepReceived(t, "", Shape{Rate: 100e9})
	testKeepReceived(t, "", Shape{Delay: time.Microsecond})
}

func testKeepReceived(t *testing.T, program string, shape Shape) {
	f := NewFabric()
	addrC := netip.MustParseAddr("192.0.2.3")
	other, same := f.NewLink("other", addrB), f.NewLink("engine", addrC)
	inner := f.NewLink("engine", addrA)
	loopback := NewLoopbackLink(inner, func(s Station) bool { return s == Station{Addr: addrA} })
	p, err := fault.Parse(strings.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	l := NewShapedLink(NewCaptureLink(NewFaultLink(loopback, p), nil, CaptureOptions{}), shape)
	send := func(now int64, b byte) {
		for from, path := range map[Link]*Path{l: aToA, other: bToA, same: {Src: addrC, Dst: addrA}} {
			one := frame(path, 1, bytes.Repeat([]byte{b}, 100))
			one.Volatile = true
			mustSend(t, from, now, one)
		}
	}
	var rx [8]RxFrame
	var got []RxFrame
	send(1, 7)
	for now := range int64(8) {
		n, _ := l.Receive(1+1000*now, rx[:])
		got = append(got, rx[:n]...)
		KeepReceived(l)
	}
	for i := range int64(20) {
		send(10_000*(1+i), 8)
		for k := range int64(8) {
			l.Receive(10_000*(1+i)+1000*k, rx[:])
		}
	}
	if len(got) != 3 {
		t.Fatalf("program %q, %+v: %d frames", program, shape, len(got))
	}
	for i := range got {
		if b := got[i].Head[len(got[i].Head)-50]; b != 7 {
			t.Errorf("program %q, %+v: frame %d holds %d", program, shape, i, b)
		}
	}
}

func TestKeepReceivedMessages(t *testing.T) {
	b := newRxBatch(0, false)
	*b.iovs[3].Base = 7
	b.n, b.next, b.msgs[3].n = 5, 3, 1
	m, _ := b.take()
	b.keep()
	*b.iovs[3].Base = 8
	if m.data[0] != 7 {
		t.Error("the bytes of a message were overwritten")
	}
	b.next = 3
	if m, _ := b.take(); m.data[0] != 8 {
		t.Error("a message is not where the kernel writes it")
	}
}
