package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/packet"
)

// decodeAll decodes frames, one a microsecond from 1,700,000,000 s on.
func decodeAll(t *testing.T, o DecodeOptions, frames ...[]byte) (string, Summary) {
	t.Helper()
	var file, out bytes.Buffer
	w, err := NewWriter(&file, "a")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if err := w.WriteFrame(1_700_000_000e9+int64(i)*1000, 0, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(&file, "f")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Decode(&out, r, o)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), sum
}

// marked has every field of every header set, so that one that is left out or mixed up shows; o
// decides which count.
func marked(o packet.Opcode) *packet.Header {
	return &packet.Header{
		BTH:  packet.BTH{Opcode: o, Solicited: true, MigReq: true, PKey: 0x8001, BECN: true, Reserved6: 1, DestQP: 0xabcdef, AckReq: true, Reserved7: 2, PSN: 0xfedcba},
		RETH: packet.RETH{VA: 0xfedcba9876543210, RKey: 0x89abcdef, Length: 4000000000}, AETH: packet.AETH{Syndrome: 0x2e, MSN: 0xfffffe},
		Atomic:   packet.AtomicETH{VA: 0x1fffffffffffffff, RKey: 7, SwapAdd: 0x8000000000000001, Compare: 0x8000000000000002},
		OrigData: 0xffffffffffffffff, Imm: 0x80000001, Invalidate: 0x90000001, DETH: packet.DETH{QKey: 0x91111111, SrcQP: 0xfffff0, Reserved: 3},
		FETH: packet.FETH{Placement: 2, Selectivity: 1, Reserved: 64}, XRCSRQ: 0x123456, XRCResv: 4,
	}
}

// markedFrame is a frame of marked(o); those with an odd opcode have a VLAN tag.
func markedFrame(o packet.Opcode, src, dst string, payload string) []byte {
	a := packet.Addressing{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}, Tagged: o%2 == 1, TCI: 0x7064, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		TClass: 0x6a, HopLimit: 3, FlowLabel: 0x6258a, ID: 0xf00d, SrcPort: 0xc001,
	}
	if a.Src.Is6() {
		a.ID = 0
	}
	var tx packet.Tx
	tx.Set(marked(o), []byte(payload))
	return packet.AppendFrame(nil, &a, &tx)
}

const bthText = "dest_qp=0xabcdef psn=16702650 ack_req=1 se=1 migreq=1 pad=%d tver=0 pkey=0x8001 fecn=0 becn=1 resv6=0x1 resv7=0x2 "

func TestTextLineHasEveryHeaderField(t *testing.T) {
	for _, c := range []struct {
		o       packet.Opcode
		payload string
		pad     int
		want    string
	}{
		{packet.SendFirst, "12345", 3, "payload_len=5"},
		{packet.WriteOnlyImm, "", 0, "reth.va=0xfedcba9876543210 reth.rkey=0x89abcdef reth.length=4000000000 immdt=0x80000001 payload_len=0"},
		{packet.Acknowledge, "", 0, "aeth.syndrome=0x2e(RNR NAK(timer 14)) aeth.msn=16777214 payload_len=0"},
		{packet.AtomicAcknowledge, "", 0, "aeth.msn=16777214 atomicacketh.original=0xffffffffffffffff payload_len=0"},
		{packet.CompareSwap, "", 0, "atomiceth.va=0x1fffffffffffffff atomiceth.rkey=0x7 atomiceth.swap_add=0x8000000000000001 atomiceth.compare=0x8000000000000002"},
		{packet.SendOnlyInv, "", 0, "ieth.rkey=0x90000001"},
		{packet.Flush, "", 0, "feth.placement=2 feth.selectivity=1 reth.va=0xfedcba9876543210"},
		{packet.Opcode(packet.UD) | packet.SendOnlyImm, "", 0, "deth.qkey=0x91111111 deth.src_qp=0xfffff0 immdt=0x80000001"},
		{packet.Opcode(packet.XRC) | packet.SendOnly, "", 0, "xrceth.srq=0x123456 payload_len=0"},
		{packet.OpcodeCNP, strings.Repeat("\x00", 16), 0, "payload_len=16"},
	} {
		text, sum := decodeAll(t, DecodeOptions{}, markedFrame(c.o, "192.0.2.1", "192.0.2.2", c.payload))
		for _, want := range []string{
			fmt.Sprintf("1 0.000000000 192.0.2.1 > 192.0.2.2 %v ", c.o), fmt.Sprintf(bthText, c.pad), c.want,
			"(ok) udp=49153>4791 tclass=0x6a hop_limit=3 ip_id=0xf00d df=1 eth=02:00:00:00:00:01>02:00:00:00:00:02",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%v: %s\nlacks %s", c.o, text, want)
			}
		}
		if tagged := strings.Contains(text, " vlan=100 pcp=3 dei=1"); tagged != (c.o%2 == 1) || strings.Count(text, "\n") != 1 {
			t.Errorf("%v: %s", c.o, text)
		}
		if sum != (Summary{RoCE: 1}) {
			t.Errorf("%v: %v", c.o, sum)
		}
	}
	text, _ := decodeAll(t, DecodeOptions{}, markedFrame(packet.SendOnly, "2001:db8::1", "2001:db8::2", ""))
	if !strings.Contains(text, "2001:db8::1 > 2001:db8::2 ") || !strings.Contains(text, "flow_label=0x6258a") || strings.Contains(text, "ip_id") {
		t.Error(text)
	}
}

func TestDecodeReportsFramesWithoutPacket(t *testing.T) {
	good := frame(packet.SendOnly, 1, 7, "abc")
	wrong := bytes.Clone(good)
	wrong[len(wrong)-6] ^= 4
	frames := [][]byte{
		good, wrong, make([]byte, 60), good[:50], frame(0x1f, 1, 8, ""), frame(packet.SendOnly, 1, 9, "")[:0],
	}
	text, sum := decodeAll(t, DecodeOptions{}, frames...)
	if want := (Summary{RoCE: 3, BadICRC: 1, Malformed: 3, Other: 1}); sum != want {
		t.Errorf("%v, want %v", sum, want)
	}
	lines := strings.Split(text, "\n")
	for i, want := range []string{
		"1 0.000000000 192.0.2.1", "(BAD)", "4 0.000003000 malformed: 50 bytes, offset 50: frame is shorter than its headers announce",
		`error="offset 42: opcode is not assigned"`, "6 0.000005000 malformed: 0 bytes, offset 0: frame is shorter", "",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d: %s\nlacks %s", i, lines[i], want)
		}
	}
	text, _ = decodeAll(t, DecodeOptions{All: true}, frames...)
	if !strings.Contains(text, "\n3 0.000002000 other protocol: 60 bytes, offset 12: not a RoCE packet\n") {
		t.Error(text)
	}
	for i, line := range strings.Split(strings.TrimSpace(must(decodeAll(t, DecodeOptions{All: true, JSON: true}, frames...))), "\n") {
		var j map[string]any
		if err := json.Unmarshal([]byte(line), &j); err != nil || j["no"] != float64(i+1) || (j["not_roce"] == true) != (i == 2) || (j["error"] != nil) != (i > 1) {
			t.Errorf("%v %s", err, line)
		}
	}
	if got := sum.String(); got != "3 RoCEv2 packets, 1 with a wrong ICRC, 3 malformed; 1 frames of other protocols" {
		t.Error(got)
	}
}

func must(text string, _ Summary) string { return text }

func TestPadBeyondPayloadIsPacketError(t *testing.T) {
	b := frame(packet.Acknowledge, 1, 7, "")
	at := packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	b[at+1] |= 0x30 // three bytes of pad
	p, err := Parse(Record{LinkType: Ethernet, Data: b})
	if err != nil || !errors.Is(p.Err, packet.ErrPad) || p.Payload != nil || p.PSN != 7 {
		t.Errorf("%v %v", err, p)
	}
	if Syndrome(0)(p) {
		t.Error("Syndrome matches a packet whose AETH could not be parsed")
	}
}

func TestDecodeReturnsReadAndWriteErrors(t *testing.T) {
	le := bothOrders[0]
	b := pcapOf(le, pcapMicro, frame(packet.SendOnly, 1, 2, "abc"))
	r, err := NewReader(bytes.NewReader(append(b, 1)), "f")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if sum, err := Decode(&out, r, DecodeOptions{}); !errors.Is(err, ErrTruncated) || sum.RoCE != 1 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%v, %v, %s", sum, err, out.String())
	}
	if r, err = NewReader(bytes.NewReader(b), "f"); err != nil || r.Name() != "f" || r.Close() != nil {
		t.Fatal(err)
	}
	if _, err := Decode(&full{10}, r, DecodeOptions{}); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

func TestFixturesDecodeCompletely(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		ps, err := Load(file)
		if err != nil || len(ps) == 0 {
			t.Errorf("%s: %d packets, %v", file, len(ps), err)
		}
		r, err := Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		sum, err := Decode(io.Discard, r, DecodeOptions{})
		if err != nil || sum.RoCE != len(ps) || sum.BadICRC != 0 || sum.Malformed != 0 {
			t.Errorf("%s: %v, %v", file, sum, err)
		}
		if lines := strings.Count(ps.String(), "\n"); lines != len(ps) {
			t.Errorf("%s: %d lines for %d packets", file, lines, len(ps))
		}
	}
}

func fixtureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../pcap-fixtures/*.pcap")
	if err != nil || len(files) < 80 {
		t.Fatalf("found %d fixtures, %v", len(files), err)
	}
	return files
}

func TestSecondsHaveSign(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0.000000000", 1: "0.000000001", -1: "-0.000000001", -1500 * time.Millisecond: "-1.500000000"} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}
