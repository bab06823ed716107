package fault_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"softroce/packet"
	"softroce/wire"
	"softroce/wire/fault"
)

// FuzzParse checks that a program that parses prints as a program, and that a link can run it.
func FuzzParse(f *testing.F) {
	f.Add("seed 7\ndrop send qp 0x11 opcode SEND_ONLY psn 5..9 nth 3 count 1\n")
	f.Add("duplicate 2 kind ack every 10\nreorder 3 within 1ms chance 0.5%\ndelay 1ms jitter 2us\n")
	f.Add("corrupt bit 12\nmark src 10.0.0.0/8\nset psn 4\nrate 1.5Gbit/s queue 10 time 1s..2s\n")
	f.Add("fail completion RETRY_EXC_ERR opcode send nth 1\nslow reg_mr 1ms client app\nhold completion qp 5\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := fault.Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, r := range p.Rules {
			again, err := fault.Parse(strings.NewReader(r.Text))
			if err != nil {
				t.Fatalf("%q does not parse again: %v", r.Text, err)
			}
			again.Rules[0].Line = r.Line
			if !reflect.DeepEqual(again.Rules[0], r) {
				t.Fatalf("%q parses again as %+v", r.Text, again.Rules[0])
			}
			r.Text = ""
			if _, err := fault.Parse(strings.NewReader(r.String())); err != nil {
				t.Fatalf("%q: %v", r, err)
			}
		}
		runOnLink(t, p, []byte(text))
	})
}

// runOnLink sends some packets through a link with a fault program.
func runOnLink(t *testing.T, p *fault.Program, payload []byte) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	fabric := wire.NewFabric()
	sender, receiver := wire.NewFaultLink(fabric.NewLink(1, a), p), fabric.NewLink(1, b)
	path := &wire.Path{Src: a, Dst: b, SrcPort: 0xc123, HopLimit: 64}
	var rx [8]wire.RxFrame
	for i := range uint32(4) {
		now := int64(i) * 1e6
		h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: 0x11, PSN: i}}
		tx := wire.TxFrame{Path: path}
		tx.Set(&h, payload)
		if _, err := sender.Send(now, []wire.TxFrame{tx}); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := receiver.Receive(now, rx[:])
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
	}
}
