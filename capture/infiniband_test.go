package capture

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/cm"
	"softroce/internal/ib"
	"softroce/packet"
)

// ibFrame returns an InfiniBand packet from LID 5 to LID 20, with a GRH if global is set.
func ibFrame(global bool, vl uint8, h *packet.Header, payload []byte) []byte {
	a := packet.Addressing{
		Network: packet.InfiniBand, LRH: packet.LRH{VL: vl, SL: 2, LNH: packet.LNHLocal, DLID: 20, SLID: 5},
		Src: packet.LIDAddr(5), Dst: packet.LIDAddr(20),
	}
	if global {
		a.LRH.LNH = packet.LNHGlobal
		a.Src, a.Dst = netip.MustParseAddr("fe80::2:c903:1:1"), netip.MustParseAddr("fe80::2:c903:1:2")
		a.TClass, a.FlowLabel, a.HopLimit = 0x6a, 0x6258a, 61
	}
	var tx packet.Tx
	tx.Set(h, payload)
	return packet.AppendFrame(nil, &a, &tx)
}

// madFrame returns a management datagram: class, method and attribute, and bytes at offsets.
func madFrame(qpn uint32, class, method uint8, attribute uint16, set map[int]byte) []byte {
	b := make([]byte, cm.MADSize)
	h := cm.Header{BaseVersion: 1, Class: class, ClassVersion: 1, Method: method, TID: 0x1234567, Attribute: cm.Attribute(attribute)}
	h.Put(b)
	for at, v := range set {
		b[at] = v
	}
	bth := packet.BTH{Opcode: packet.Opcode(packet.UD) | packet.SendOnly, PKey: packet.DefaultPKey, DestQP: qpn, PSN: 9}
	var vl uint8
	if qpn == ib.SMIQPN {
		vl = 15
	}
	return ibFrame(false, vl, &packet.Header{BTH: bth, DETH: packet.DETH{QKey: uint32(qpn) * cm.GSIQKey, SrcQP: qpn}}, b)
}

// infiniBandFrames returns packets of every opcode that tshark knows, and of management.
func infiniBandFrames() (l [][]byte) {
	for o := range packet.Opcode(packet.CNP) {
		in := o.Info()
		if !in.Valid || in.Kind == packet.KindFlush || in.Kind == packet.KindAtomicWrite {
			continue
		}
		var payload []byte
		if in.Payload {
			payload = []byte("some payload") // without a payload tshark reports malformed EoIB
		}
		l = append(l, ibFrame(false, 3, marked(o), payload), ibFrame(true, 0, marked(o), payload))
	}
	return append(l,
		madFrame(0, ib.ClassSubnDirect, 1, 0x11, map[int]byte{6: 1, 7: 2, 32: 0xff, 33: 0xff, 34: 0xff, 35: 0xff, 129: 1, 130: 7}),
		madFrame(0, ib.ClassSubn, 2, 0x15, map[int]byte{31: 0x77}),
		madFrame(1, ib.ClassSubnAdm, 1, 0x35, nil),
		madFrame(1, 0x04, 1, 0x12, nil),
	)
}

// pcapFile lays out a pcap file of a link type with nanosecond times.
func pcapFile(link LinkType, frames ...[]byte) []byte {
	o := binary.LittleEndian
	b := words(o, pcapNano, uint16(2), uint16(4), 0, 0, 65535, int(link))
	for i, f := range frames {
		b = words(o, b, 5, i, len(f), len(f), f)
	}
	return b
}

// erfRecord lays out an ERF record at 5.5 s. Extension headers precede the frame, pad follows it.
func erfRecord(kind uint8, extensions, pad int, frame []byte) []byte {
	if extensions > 0 {
		kind |= erfExtended
	}
	rlen := erfHeaderLen + extensions*erfExtensionLen + len(frame) + pad
	wire := len(frame)
	if kind&^erfExtended == erfEthernet {
		wire -= erfEthernetPad
	}
	b := words(binary.LittleEndian, 1<<31, 5, []byte{kind, 4})
	b = words(binary.BigEndian, b, uint16(rlen), uint16(1), uint16(wire))
	for i := range extensions {
		e := make([]byte, erfExtensionLen)
		if i < extensions-1 {
			e[0] = erfExtended
		}
		b = append(b, e...)
	}
	return append(append(b, frame...), make([]byte, pad)...)
}

func TestReaderFindsInfiniBandInEveryFormat(t *testing.T) {
	want := ibFrame(true, 0, marked(packet.SendOnly), []byte("payload"))
	erf := []byte{}
	for i := range 3 {
		erf = append(erf, erfRecord(erfInfiniBand, i, 8*i, want)...)
	}
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		file   []byte
		frames int
		lost   uint64
	}{
		"pcap":        {pcapFile(InfiniBand, want, want), 2, 0},
		"pcap of ERF": {pcapFile(ERF, erfRecord(erfInfiniBand, 0, 0, want), erfRecord(erfInfiniBand, 2, 6, want)), 2, 0},
		"ERF":         {erf, 3, 3},
		"pcapng": {words(le, sectionOf(le), blockOf(le, blockInterface, uint16(InfiniBand), uint16(0), 0),
			blockOf(le, blockEnhanced, 0, 0, 1, len(want), len(want), want)), 1, 0},
	} {
		r, err := NewReader(bytes.NewReader(c.file), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for rec, err := range r.Records() {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p, err := Parse(rec)
			if err != nil || rec.LinkType != InfiniBand || rec.Length != len(want) || !bytes.Equal(rec.Data, want) || !p.ICRCOK() || !p.VCRCOK() {
				t.Errorf("%s: %v, %v", name, rec, err)
			}
			if name == "ERF" && !rec.Time.Equal(time.Unix(5, 5e8)) {
				t.Errorf("%s: at %v", name, rec.Time)
			}
			n++
		}
		if n != c.frames || r.Lost() != c.lost {
			t.Errorf("%s: %d frames, %d lost", name, n, r.Lost())
		}
	}
}

func TestReaderReadsOtherERFRecords(t *testing.T) {
	ethernet := frame(packet.SendOnly, 1, 2, "abc")
	file := slices.Concat(
		erfRecord(erfEthernet, 0, 3, append([]byte{0, 0}, ethernet...)),
		erfRecord(5, 0, 0, []byte("another type")),
		erfRecord(erfInfiniBand, 0, 0, ibFrame(false, 0, marked(packet.SendOnly), nil)),
	)
	recs := readAll(t, file)
	if p, err := Parse(recs[0]); err != nil || string(p.Payload) != "abc" || !p.ICRCOK() {
		t.Errorf("Ethernet: %v, %v", p, err)
	}
	if _, err := Parse(recs[1]); !errors.Is(err, packet.ErrNotRoCE) {
		t.Errorf("another type: %v", err)
	}
	if p, err := Parse(recs[2]); err != nil || p.DestQP != marked(packet.SendOnly).DestQP {
		t.Errorf("InfiniBand: %v, %v", p, err)
	}
}

func TestReaderRejectsERF(t *testing.T) {
	whole := erfRecord(erfInfiniBand, 1, 0, ibFrame(false, 0, marked(packet.SendOnly), nil))
	short := bytes.Clone(whole)
	binary.BigEndian.PutUint16(short[10:], 15)
	for name, c := range map[string]struct {
		file   []byte
		reason error
		text   string
	}{
		"header cut":           {append(bytes.Clone(whole), whole[:9]...), ErrTruncated, fmt.Sprintf("f: offset %d: file is truncated: record header of 16 bytes ends after 9", len(whole))},
		"record cut":           {whole[:30], ErrTruncated, fmt.Sprintf("f: offset 0: file is truncated: record of %d bytes ends after 30", len(whole))},
		"record of 15 bytes":   {append(bytes.Clone(whole), short...), ErrCorrupt, fmt.Sprintf("f: offset %d: capture is corrupt: record of 15 bytes", len(whole)+10)},
		"first of 15 bytes":    {short, ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: begins with 00 00 00 80"},
		"another first record": {erfRecord(5, 0, 0, make([]byte, 40)), ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: begins with 00 00 00 80"},
	} {
		r, err := NewReader(bytes.NewReader(c.file), "f")
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, c.reason) || err.Error() != c.text {
			t.Errorf("%s: %v\nwant %s", name, err, c.text)
		}
	}
	// A record that ends inside its extension headers is a frame that cannot be parsed.
	for _, n := range []int{3, 16, 20} {
		recs := readAll(t, pcapFile(ERF, whole[:n]))
		if _, err := ParseCut(recs[0]); !errors.Is(err, packet.ErrTruncated) {
			t.Errorf("%d bytes of a record: %v", n, err)
		}
	}
}

func decodeText(t *testing.T, file []byte, o DecodeOptions) (string, Summary) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(file), "f")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	sum, err := Decode(&out, r, o)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), sum
}

// expectInLines verifies that each of the first lines has its text.
func expectInLines(t *testing.T, lines []string, texts ...string) {
	t.Helper()
	for i, want := range texts {
		if !strings.Contains(lines[i], want) {
			t.Errorf("no %q in %s", want, lines[i])
		}
	}
}

func TestDecodeShowsInfiniBandHeaders(t *testing.T) {
	local, global := ibFrame(false, 3, marked(packet.SendOnly), nil), ibFrame(true, 0, marked(packet.SendOnly), nil)
	badVCRC, badICRC := bytes.Clone(local), bytes.Clone(local)
	badVCRC[len(local)-1] ^= 1
	badICRC[len(local)-packet.VCRCLen-1] ^= 1
	long := bytes.Clone(local)
	long[5] = 200
	raw := bytes.Clone(local)
	raw[1] &^= 3
	file := pcapFile(InfiniBand, local, global, badVCRC, badICRC, local[:len(local)-packet.VCRCLen], long, raw)
	text, sum := decodeText(t, file, DecodeOptions{All: true})
	lines := strings.Split(text, "\n")
	expectInLines(t, lines,
		"1 0.000000000 ::5%lid > ::14%lid RC_SEND_ONLY dest_qp=0xabcdef ",
		"2 0.000000001 fe80::2:c903:1:1 > fe80::2:c903:1:2 RC_SEND_ONLY ",
		"(BAD) lid=5>20 vl=3 sl=2 lver=0 lnh=2", "(BAD) vcrc=", "(ok) lid=5>20 vl=3 sl=2 lver=0 lnh=2",
		"6 0.000000005 malformed: 26 bytes, offset 26: frame is shorter than its headers announce",
		"7 0.000000006 other protocol: 26 bytes, offset 1: not a RoCE packet: raw packet, LNH 0",
	)
	if want := " tclass=0x6a hop_limit=61 flow_label=0x6258a lid=5>20 vl=0 sl=2 lver=0 lnh=3"; !strings.HasSuffix(lines[1], want) || strings.Contains(lines[0], "tclass") || strings.Contains(text, "udp") {
		t.Errorf("no %q at the end of %s", want, lines[1])
	}
	if strings.Contains(lines[4], "vcrc") {
		t.Errorf("a VCRC that the capture does not have: %s", lines[4])
	}
	if got, want := sum.String(), "5 InfiniBand packets, 1 with a wrong ICRC, 1 malformed, 2 with a wrong VCRC; 1 frames of other protocols"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	short, _ := decodeText(t, file, DecodeOptions{Short: true})
	lines = strings.Split(short, "\n")
	if !strings.Contains(lines[1], " lid 5 > 20 sl 2") || !strings.Contains(lines[2], " VCRC BAD") || strings.Contains(lines[0], "BAD") {
		t.Errorf("short lines:\n%s", short)
	}
}

// What a snap length leaves of a packet is shown, but neither CRC judged.
func TestDecodeOfCutInfiniBandPacket(t *testing.T) {
	whole := ibFrame(true, 0, marked(packet.SendOnly), make([]byte, 100))
	for _, record := range []Record{
		{LinkType: InfiniBand, Length: len(whole), Data: whole[:packet.LRHLen+packet.GRHLen+packet.BTHLen+10]},
		erfFrame(Record{LinkType: ERF, Data: erfRecord(erfInfiniBand, 0, 0, whole)[:erfHeaderLen+packet.LRHLen+packet.GRHLen+packet.BTHLen+10]}),
	} {
		p, err := ParseCut(record)
		if err != nil || !p.Cut || p.DestQP != marked(packet.SendOnly).DestQP || len(p.Payload) != 10 {
			t.Fatalf("%v, %v", p, err)
		}
		if s := p.String(); strings.Contains(s, "crc") || !strings.Contains(s, fmt.Sprintf(" cut=%d/%d ", len(record.Data), len(whole))) {
			t.Errorf("cut: %s", s)
		}
	}
}

func TestDecodeNamesManagementDatagrams(t *testing.T) {
	back := map[int]byte{4: 0x80, 7: 70} // a hop count beyond the path
	file := pcapFile(InfiniBand,
		madFrame(0, ib.ClassSubnDirect, 1, 0x11, map[int]byte{6: 1, 7: 2, 33: 7, 34: 0xff, 35: 0xff, 129: 1, 130: 7}),
		madFrame(0, ib.ClassSubnDirect, 0x81, 0x15, back),
		madFrame(0, ib.ClassSubn, 2, 0x17, map[int]byte{31: 0x77}),
		madFrame(1, ib.ClassSubnAdm, 0x12, 0x35, nil), madFrame(1, 0x04, 1, 0x12, nil), madFrame(1, 0x03, 6, 2, nil),
		madFrame(1, 0x0a, 0x55, 0x9999, nil), madFrame(1, 0x32, 1, 1, nil), madFrame(1, 0x15, 1, 1, nil), madFrame(1, 0x90, 1, 1, nil),
		madFrame(1, ib.ClassCM, 1, 1, nil),
	)
	text, _ := decodeText(t, file, DecodeOptions{})
	lines := strings.Split(text, "\n")
	for i, want := range []string{
		` mad.message=SubnGet(NodeInfo) mad.class=0x81 mad.method=0x1 mad.attribute=0x11 mad.status=0x0 mad.tid=0x1234567 mad.m_key=0x0 mad.direction="outbound" mad.hop_pointer=1 mad.hop_count=2 mad.dr_slid=7 mad.dr_dlid=65535 mad.initial_path="1,7" `,
		` mad.message=SubnGetResp(PortInfo) mad.class=0x81 mad.method=0x81 mad.attribute=0x15 mad.status=0x0 `,
		` mad.message=SubnSet(SLtoVLMappingTable) mad.class=0x1 mad.method=0x2 mad.attribute=0x17 mad.status=0x0 mad.tid=0x1234567 mad.m_key=0x77 `,
		" mad.message=SubnAdmGetTable(PathRecord) ", " mad.message=PerfGet(PortCounters) ", " mad.message=SubnAdmReport(Notice) ",
		" mad.message=Vendor0x0aMethod0x55(0x9999) ", " mad.message=Vendor0x32Get(ClassPortInfo) ", " mad.message=Application0x15Get(ClassPortInfo) ",
		" mad.message=Class0x90Get(ClassPortInfo) ", " mad.message=ComMgtGet(ClassPortInfo) mad.class=0x7 ",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("no %q in %s", want, lines[i])
		}
	}
	short, _ := decodeText(t, file, DecodeOptions{Short: true})
	if !strings.Contains(short, " SubnGet(NodeInfo) tid 0x1234567") {
		t.Errorf("short lines:\n%s", short)
	}
	object, _ := decodeText(t, file, DecodeOptions{JSON: true})
	if !strings.Contains(object, `"message":"SubnGet(NodeInfo)","fields":{"direction":"outbound","dr_dlid":65535,"dr_slid":7,"hop_count":2,"hop_pointer":1,"initial_path":"1,7","m_key":"0x0"}`) {
		t.Errorf("JSON:\n%s", object)
	}
}

// infiniBandColumns are fields as tshark dissects them and as JSON has them; see columns.
var infiniBandColumns = []column{
	{"infiniband.lrh.vl", "lrh.vl", 0},
	{"infiniband.lrh.lver", "lrh.lver", 0},
	{"infiniband.lrh.sl", "lrh.sl", 0},
	{"infiniband.lrh.lnh", "lrh.lnh", 0},
	{"infiniband.lrh.dlid", "lrh.dlid", 0},
	{"infiniband.lrh.slid", "lrh.slid", 0},
	{"infiniband.grh.tclass", "tclass", 0},
	{"infiniband.grh.flowlabel", "flow_label", 0},
	{"infiniband.grh.hoplmt", "hop_limit", 0},
	{"infiniband.bth.opcode", "opcode", 0},
	{"infiniband.bth.destqp", "dest_qp", 0},
	{"infiniband.bth.psn", "psn", 0},
	{"infiniband.mad.mgmtclass", "mad.class", 0},
	{"infiniband.mad.method", "mad.method", 0},
	{"infiniband.mad.transactionid", "mad.tid", 0},
	{"infiniband.smpdirected.hoppointer", "mad.fields.hop_pointer", 0},
	{"infiniband.smpdirected.hopcount", "mad.fields.hop_count", 0},
	{"infiniband.smpdirected.drslid", "mad.fields.dr_slid", 0},
	{"infiniband.smpdirected.drdlid", "mad.fields.dr_dlid", 0},
}

// tshark dissects the headers as we do. It does not compute the CRCs, and release 4.0 does not read
// link type 247 from pcap files.
func TestDecodeOfInfiniBandAgreesWithTshark(t *testing.T) {
	needTshark(t)
	frames := infiniBandFrames()
	var erf []byte
	var records [][]byte
	for i, f := range frames {
		r := erfRecord(erfInfiniBand, i%3, -len(f)&7, f)
		erf, records = append(erf, r...), append(records, r)
	}
	for name, content := range map[string][]byte{"erf.pcap": pcapFile(ERF, records...), "ib.erf": erf} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"-r", file, "-T", "fields", "-E", "occurrence=f", "--disable-protocol", "rpcordma", "-e", "_ws.malformed",
			"-e", "infiniband.grh.sgid", "-e", "infiniband.variant.crc", "-e", "infiniband.invariant.crc"}
		for _, c := range infiniBandColumns {
			args = append(args, "-e", c.tshark)
		}
		out, err := exec.Command("tshark", args...).Output()
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
		ours, _ := decodeText(t, content, DecodeOptions{JSON: true})
		dec := json.NewDecoder(strings.NewReader(ours))
		dec.UseNumber()
		compared, crcs := 0, 0
		for line := range strings.Lines(string(out)) {
			var j map[string]any
			if err := dec.Decode(&j); err != nil {
				t.Fatal(err)
			}
			row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if row[0] != "" {
				t.Errorf("%s, packet %v (%v): tshark reports a malformed packet", name, j["no"], j["opcode_name"])
			}
			if row[1] != "" && row[1] != j["src"] {
				t.Errorf("%s, packet %v: source GID %s, ours %v", name, j["no"], row[1], j["src"])
			}
			if row[2] != "" { // absent if tshark parses the payload as Ethernet
				var v uint16
				fmt.Sscan(row[2], &v)
				if got := fmt.Sprint(v>>8 | v<<8); got != fmt.Sprint(j["vcrc"]) {
					t.Errorf("%s, packet %v: VCRC %s, ours %v", name, j["no"], got, j["vcrc"])
				}
				crcs++
			}
			for i, c := range infiniBandColumns {
				want := row[4+i]
				if strings.HasPrefix(c.tshark, "infiniband.grh.") && want == "" {
					continue
				}
				if got := canonical(lookup(j, c.json), 0); canonical(want, c.base) != got {
					t.Errorf("%s, packet %v (%v): %s is %q, ours %q", name, j["no"], j["opcode_name"], c.tshark, want, got)
				}
			}
			compared++
		}
		if compared != len(frames) || crcs < len(frames)/2 {
			t.Errorf("%s: %d of %d packets were compared, %d with a VCRC", name, compared, len(frames), crcs)
		}
	}
}

var update = flag.Bool("update", false, "write pcap-fixtures/infiniband.erf")

// pcap-fixtures/infiniband.erf, which tests of commands read, has the management datagrams above
// and the connection of a RoCEv2 capture, as InfiniBand packets.
func TestInfiniBandFixtureIsWhatTheEncoderWrites(t *testing.T) {
	ps, err := Load("../pcap-fixtures/cm-rping.pcap")
	if err != nil {
		t.Fatal(err)
	}
	frames := infiniBandFrames()
	frames = frames[len(frames)-4:]
	for _, p := range ps {
		src, dst := p.Src.As4(), p.Dst.As4()
		a := packet.Addressing{Network: packet.InfiniBand, LRH: packet.LRH{LNH: packet.LNHLocal, SLID: uint16(src[3]), DLID: uint16(dst[3])}}
		a.Src, a.Dst = packet.LIDAddr(a.LRH.SLID), packet.LIDAddr(a.LRH.DLID)
		var tx packet.Tx
		tx.Set(&p.Header, p.Payload)
		frames = append(frames, packet.AppendFrame(nil, &a, &tx))
	}
	var want []byte
	for i, f := range frames {
		r := erfRecord(erfInfiniBand, 0, -len(f)&7, f)
		binary.LittleEndian.PutUint64(r, uint64(1e9)<<32+uint64(i)<<16) // 15 microseconds apart
		binary.BigEndian.PutUint16(r[12:], 0)                           // nothing lost
		want = append(want, r...)
	}
	const file = "../pcap-fixtures/infiniband.erf"
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs, %v: go test ./capture -run %s -update", file, err, t.Name())
	}
}
