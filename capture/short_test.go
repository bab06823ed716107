package capture

import (
	"encoding/json"
	"strings"
	"testing"

	"softroce/packet"
)

func TestShortLinesLeaveOutWhatNeverChanges(t *testing.T) {
	for _, c := range []struct {
		o       packet.Opcode
		payload string
		want    string
	}{
		{packet.WriteOnlyImm, "1234", "va 0xfedcba9876543210 rkey 0x89abcdef length 4000000000 imm 0x80000001 payload 4"},
		{packet.Acknowledge, "", "RNR NAK(timer 14) msn 16777214"},
		{packet.ReadResponseMid, "1234", "payload 4"},
		{packet.AtomicAcknowledge, "", "original 0xffffffffffffffff"},
		{packet.CompareSwap, "", "va 0x1fffffffffffffff rkey 0x7 swap_add 0x8000000000000001 compare 0x8000000000000002"},
		{packet.SendOnlyInv, "", "invalidate 0x90000001"},
		{packet.Opcode(packet.UD) | packet.SendOnly, "", "src_qp 0xfffff0"},
		{packet.Opcode(packet.XRC) | packet.SendOnly, "", "srq 0x123456"},
	} {
		unusual := " ack_req se becn ce pkey 0x8001 resv6 0x1 resv7 0x2"
		if c.o%2 == 1 {
			unusual += " vlan 100"
		}
		f := markedFrame(c.o, "192.0.2.1", "192.0.2.2", c.payload)
		f[tclassAt(c.o)] |= 3 // the ICRC does not cover it
		text, _ := decodeAll(t, DecodeOptions{Short: true}, f)
		want := "1 0.000000000 192.0.2.1 > 192.0.2.2 qp 0xabcdef psn 16702650 " + c.o.String() + " " + c.want + unusual + "\n"
		if text != want {
			t.Errorf("%v:\n got %swant %s", c.o, text, want)
		}
	}
	wrong := frame(packet.SendOnly, 17, 7, "abc")
	wrong[len(wrong)-6] ^= 4
	text, _ := decodeAll(t, DecodeOptions{Short: true}, frame(packet.SendOnly, 17, 7, "abc"), wrong, frame(0x1f, 17, 8, ""))
	want := "1 0.000000000 192.0.2.1 > 192.0.2.2 qp 0x11 psn 7 RC_SEND_ONLY payload 3\n" +
		"2 0.000001000 192.0.2.1 > 192.0.2.2 qp 0x11 psn 7 RC_SEND_ONLY payload 3 ICRC BAD\n" +
		"3 0.000002000 192.0.2.1 > 192.0.2.2 qp 0x11 psn 8 Opcode(0x1f) error \"offset 42: opcode is not assigned\"\n"
	if text != want {
		t.Errorf("\n got %s\nwant %s", text, want)
	}
}

// tclassAt returns the offset of the traffic class in a markedFrame.
func tclassAt(o packet.Opcode) int { return packet.EthernetLen + packet.VLANLen*int(o%2) + 1 }

func TestFilteredPacketsAreLeftOut(t *testing.T) {
	filter, err := ParseFilter("psn 8", "kind ack")
	if err != nil {
		t.Fatal(err)
	}
	nak := frame(packet.Acknowledge, 18, 9, "")
	text, sum := decodeAll(t, DecodeOptions{Short: true, All: true, Filter: filter, Remark: func(p *Packet) *Remark {
		if p.PSN == 7 || p.PSN == 8 {
			return &Remark{Again: &Again{Cause: CauseNAK, Packet: 3, After: 1500}}
		}
		return nil
	}}, frame(packet.SendOnly, 17, 7, "a"), frame(packet.SendOnly, 17, 8, "b"), nak, make([]byte, 60), nak[:50])
	lines := strings.Split(text, "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " psn 8 RC_SEND_ONLY payload 1 [again: NAK in packet 3, 1.5µs before]") || !strings.Contains(lines[1], "RC_ACKNOWLEDGE") {
		t.Errorf("got\n%s", text)
	}
	if want := (Summary{RoCE: 3, Malformed: 1, Other: 1, Again: 2, Filtered: 1}); sum != want {
		t.Errorf("%+v, want %+v", sum, want)
	}
	if want := "3 RoCEv2 packets, 0 with a wrong ICRC, 1 malformed, 2 sent again, 1 left out by the filter; 1 frames of other protocols"; sum.String() != want {
		t.Errorf("summary %s", sum)
	}
}

func TestRemarksAreInJSON(t *testing.T) {
	for want, r := range map[string]*Remark{
		`{"again":{"cause":"timeout","after_ns":5}}`: {Again: &Again{Cause: CauseTimeout, After: 5}},
		`{"answers_again":4}`:                        {Answers: 4}, `{"copy":true}`: {Copy: true}, `{"late":true}`: {Late: true},
	} {
		text, _ := decodeAll(t, DecodeOptions{JSON: true, Remark: func(*Packet) *Remark { return r }}, frame(packet.SendOnly, 17, 7, "a"))
		var all map[string]any
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for _, k := range []string{"again", "answers_again", "copy", "late"} {
			if v, ok := all[k]; ok {
				got[k] = v
			}
		}
		if b, _ := json.Marshal(got); !equalJSON(t, string(b), want) || all["nic"] != "a" {
			t.Errorf("%s, want %s, of NIC %v", b, want, all["nic"])
		}
	}
}

func equalJSON(t *testing.T, a, b string) bool {
	t.Helper()
	normal := func(s string) string {
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(v)
		return string(b)
	}
	return normal(a) == normal(b)
}
