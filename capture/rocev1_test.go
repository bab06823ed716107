package capture

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"softroce/packet"
)

func roceV1Frame(vlan bool) []byte {
	a := packet.Addressing{
		Network: packet.RoCEv1, SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, Tagged: vlan, TCI: 0x6007,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), TClass: 0x6a, FlowLabel: 0x6258a, HopLimit: 61,
	}
	var tx packet.Tx
	tx.Set(&packet.Header{BTH: packet.BTH{Opcode: packet.SendOnly, PKey: packet.DefaultPKey, DestQP: 0xabcdef, PSN: 7}}, []byte("data"))
	return packet.AppendFrame(nil, &a, &tx)
}

func TestDecodeShowsRoCEv1(t *testing.T) {
	good := roceV1Frame(false)
	bad, cut, raw := bytes.Clone(good), bytes.Clone(good), bytes.Clone(good)
	bad[len(bad)-1] ^= 1
	cut[packet.EthernetLen+4] = 1
	raw[packet.EthernetLen+6] = 0x3b
	file := pcapFile(Ethernet, good, roceV1Frame(true), bad, frame(packet.SendOnly, 1, 2, "abc"), cut, raw)
	text, sum := decodeText(t, file, DecodeOptions{All: true})
	lines := strings.Split(text, "\n")
	expectInLines(t, lines,
		"1 0.000000000 192.0.2.1 > 192.0.2.2 RC_SEND_ONLY dest_qp=0xabcdef ",
		" roce=v1 eth=02:00:00:00:00:01>02:00:00:00:00:02 vlan=7 pcp=3 dei=0", "(BAD) tclass=", " udp=",
		"5 0.000000004 malformed: 74 bytes, offset 74: frame is shorter than its headers announce",
		"6 0.000000005 other protocol: 74 bytes, offset 20: not a RoCE packet",
	)
	if want := "(ok) tclass=0x6a hop_limit=61 flow_label=0x6258a roce=v1 eth=02:00:00:00:00:01>02:00:00:00:00:02"; !strings.HasSuffix(lines[0], want) {
		t.Errorf("no %q at the end of %s", want, lines[0])
	}
	if got, want := sum.String(), "1 RoCEv2 packets and 3 RoCE v1 packets, 1 with a wrong ICRC, 1 malformed; 1 frames of other protocols"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	short, _ := decodeText(t, file, DecodeOptions{Short: true})
	if lines := strings.Split(short, "\n"); !strings.Contains(lines[0], " RoCE v1") || strings.Contains(lines[3], "RoCE v1") {
		t.Errorf("short lines:\n%s", short)
	}
	filter, err := ParseFilter("roce v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, sum := decodeText(t, file, DecodeOptions{Filter: filter}); sum.Filtered != 1 {
		t.Errorf("a filter for RoCE v1: %v", sum)
	}

	var j struct {
		RoCEv1    bool    `json:"roce_v1"`
		FlowLabel uint32  `json:"flow_label"`
		SrcPort   *uint16 `json:"src_port"`
		IPID      *uint16 `json:"ip_id"`
		ICRCOK    bool    `json:"icrc_ok"`
	}
	p, err := Parse(Record{LinkType: Ethernet, Length: len(good), Data: good})
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(b, &j)
	}
	if err != nil || !j.RoCEv1 || j.FlowLabel != 0x6258a || j.SrcPort != nil || j.IPID != nil || !j.ICRCOK {
		t.Errorf("%v, %s", err, b)
	}
}

// A cooked capture has the EtherType in its own header.
func TestCookedCaptureOfRoCEv1(t *testing.T) {
	grh := roceV1Frame(false)[packet.EthernetLen:]
	for link, header := range map[LinkType][]byte{
		LinuxSLL: append(make([]byte, 14), 0x89, 0x15), LinuxSL2: append([]byte{0x89, 0x15}, make([]byte, 18)...),
	} {
		b := append(header, grh...)
		p, err := Parse(Record{LinkType: link, Length: len(b), Data: b})
		if err != nil || p.Network != packet.RoCEv1 || !p.ICRCOK() || p.Src.String() != "192.0.2.1" {
			t.Errorf("link type %d: %+v, %v", link, p, err)
		}
		if _, err := Parse(Record{LinkType: link, Length: len(b), Data: b[:40]}); err == nil {
			t.Errorf("link type %d: half a GRH is parsed", link)
		}
	}
}

// What a snap length leaves of a packet is shown, and its ICRC not judged.
func TestDecodeOfCutRoCEv1Packet(t *testing.T) {
	b := roceV1Frame(true)
	p, err := ParseCut(Record{LinkType: Ethernet, Length: len(b), Data: b[:packet.EthernetLen+packet.VLANLen+packet.GRHLen+packet.BTHLen+1]})
	if err != nil || !p.Cut || p.Network != packet.RoCEv1 || p.PSN != 7 || p.DestQP != 0xabcdef {
		t.Errorf("%+v, %v", p, err)
	}
}
