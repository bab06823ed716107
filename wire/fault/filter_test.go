package fault

import (
	"net/netip"
	"strings"
	"testing"

	"softroce/packet"
)

func TestFilterSelectsPackets(t *testing.T) {
	info := func(o packet.Opcode, qp, psn uint32) *PacketInfo {
		h := packet.Header{BTH: packet.BTH{Opcode: o, DestQP: qp, PSN: psn}, AETH: packet.AETH{Syndrome: packet.NAKSequence}}
		var b [packet.MaxHeaderLen]byte
		p := &PacketInfo{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
		p.Parse(b[:h.Put(b[:])], nil)
		return p
	}
	packets := []*PacketInfo{
		info(packet.SendOnly, 17, 5), info(packet.Acknowledge, 18, 5), info(packet.WriteFirst, 17, 0xffffff), info(packet.WriteLast, 17, 0),
	}
	packets[3].Network = packet.RoCEv1
	for _, c := range []struct{ rules, want string }{
		{"roce v1", "3"}, {"roce v2 qp 17", "0 2"},
		{"qp 17", "0 2 3"}, {"qp 17 psn 16777215..0", "2 3"}, {"kind nak", "1"}, {"kind nak,write kind rnr,write", "2 3"}, {"kind nak syndrome nak", "1"}, {"src ::ffff:192.0.2.1 qp 18", "1"}, {"kind write;qp 0x12", "1 2 3"}, {"src 192.0.2.0/24 opcode SEND_ONLY", "0"},
		{"dst 192.0.2.1", ""}, {"nic b", "1 3"}, {"nic b kind write", "3"}, {"nth 2,4", "1 3"}, {"time 2us..", "2 3"}, {"qp 17 count 1", "0"},
	} {
		f, err := ParseFilter(strings.Split(c.rules, ";")...)
		if err != nil {
			t.Errorf("%s: %v", c.rules, err)
			continue
		}
		var got []string
		for i, p := range packets {
			if f.Selects(1_000_000+int64(i)*1000, string("ab"[i%2]), p) {
				got = append(got, string(rune('0'+i)))
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s selects %q, want %q", c.rules, s, c.want)
		}
	}
}

func TestFilterErrorsNameTheWord(t *testing.T) {
	for rule, want := range map[string]string{
		"qq 17":                  `"qq": is not a condition of a filter; did you mean "qp"?`,
		"send qp 17":             `"send": is not a condition of a filter`,
		"bit 7":                  `"bit": is not a condition of a filter`,
		"drop qp 1":              `"drop": is not a condition of a filter`,
		"qp x":                   `"x": must be a QP number, decimal or with 0x`,
		"psn":                    "at the end: a PSN or a range such as 5..9 must follow",
		"":                       "at the end: a condition such as",
		"kind imm,cnp kind read": "no packet meets all of opcode, kind and syndrome",
	} {
		if _, err := ParseFilter(rule); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "line") {
			t.Errorf("%q: %v, want %s", rule, err, want)
		}
	}
}
