package cm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/cm"
	"softroce/packet"
)

// fixtureMADs returns the MADs to QP 1 in a capture.
func fixtureMADs(t testing.TB, file string) (mads [][]byte) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := capture.NewReader(f, file)
	if err != nil {
		t.Fatal(err)
	}
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		p, err := capture.Parse(rec)
		if err != nil || p.Err != nil || p.Opcode.Service() != packet.UD || p.DestQP != cm.GSIQPN {
			continue
		}
		if p.DETH.QKey != cm.GSIQKey || p.DETH.SrcQP != cm.GSIQPN {
			t.Errorf("%s: packet %d: Q_Key %#x from QP %d", file, p.No, p.DETH.QKey, p.DETH.SrcQP)
		}
		mads = append(mads, bytes.Clone(p.Payload))
	}
	return mads
}

func fixtures(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../pcap-fixtures/*cm-*.pcap")
	if err != nil || len(files) < 9 {
		t.Fatalf("%d captures of connection managers, %v; want at least 9", len(files), err)
	}
	return files
}

func TestFixtureMADsRoundTrip(t *testing.T) {
	seen := map[cm.Attribute]int{}
	for _, file := range fixtures(t) {
		for i, b := range fixtureMADs(t, file) {
			h, m, err := cm.Parse(b)
			if err != nil {
				t.Errorf("%s: MAD %d: %v", file, i, err)
				continue
			}
			seen[m.Attribute()]++
			var again [cm.MADSize]byte
			cm.Put(&again, h.TID, h.Modifier, m)
			if !bytes.Equal(again[:], b) {
				t.Errorf("%s: MAD %d, %v, encoded as\n%x, want\n%x", file, i, m.Attribute(), again, b)
			}
		}
	}
	for _, a := range []cm.Attribute{cm.AttrREQ, cm.AttrREP, cm.AttrRTU, cm.AttrREJ, cm.AttrDREQ, cm.AttrDREP, cm.AttrSIDRREQ, cm.AttrSIDRREP} {
		if seen[a] == 0 {
			t.Errorf("no %v in the fixtures", a)
		}
	}
}

func TestParseKernelMessages(t *testing.T) {
	mads := fixtureMADs(t, "../pcap-fixtures/cm-rping.pcap")
	if len(mads) != 5 {
		t.Fatalf("%d MADs, want 5", len(mads))
	}
	_, m, _ := cm.Parse(mads[0])
	q := m.(*cm.REQ)
	h, err := cm.ParseIPHeader(q.Private[:])
	if err != nil {
		t.Fatal(err)
	}
	ps, port, ok := cm.ParseServiceID(q.ServiceID)
	got := fmt.Sprintf("%v %v %d, %v:%d > %v, QP %#x, PSN %#x, retry %d/%d, MTU %d, CM retries %d, times %d/%d, ack %d, rd %d/%d, hops %d",
		ok, ps, port, h.Src, h.SrcPort, h.Dst, q.LocalQPN, q.StartingPSN, q.RetryCount, q.RNRRetryCount, q.PathMTU, q.MaxCMRetries,
		q.RemoteResponseTime, q.LocalResponseTime, q.Primary.ACKTimeout, q.ResponderResources, q.InitiatorDepth, q.Primary.HopLimit)
	want := "true TCP 7174, 10.77.0.12:46588 > 10.77.0.11, QP 0x11, PSN 0xa6b874, retry 7/7, MTU 5, CM retries 15, times 20/20, ack 19, rd 1/1, hops 64"
	if got != want {
		t.Errorf("REQ of rping: %s\nwant %s", got, want)
	}
	if netip.AddrFrom16(q.Primary.LocalGID).Unmap() != h.Src || q.Primary.LocalLID != 0xffff || q.PKey != 0xffff {
		t.Errorf("path from %x, LID %#x, P_Key %#x", q.Primary.LocalGID, q.Primary.LocalLID, q.PKey)
	}
	_, m, _ = cm.Parse(mads[1])
	p := m.(*cm.REP)
	if p.RemoteID != q.LocalID || p.TargetACKDelay != 15 || p.RNRRetryCount != 7 || p.LocalQPN != 0x11 {
		t.Errorf("REP of rping: %+v", p)
	}
	_, m, _ = cm.Parse(fixtureMADs(t, "../pcap-fixtures/cm-reject.pcap")[1])
	if r := m.(*cm.REJ); r.Reason != cm.RejectInvalidService || r.About != cm.AboutREQ {
		t.Errorf("REJ without a listener: reason %v about %d", r.Reason, r.About)
	}
}

func TestParseRejectsOtherMADs(t *testing.T) {
	var good [cm.MADSize]byte
	cm.Put(&good, 1, 0, &cm.DREQ{LocalID: 1})
	for _, c := range []struct {
		name string
		at   int
		to   byte
		want error
	}{
		{"another base version", 0, 2, cm.ErrVersion},
		{"another class", 1, 4, cm.ErrClass},
		{"another class version", 2, 1, cm.ErrVersion},
		{"another method", 3, cm.MethodGet, cm.ErrMethod},
		{"an unknown attribute", 17, 0x40, cm.ErrAttribute},
	} {
		b := good
		b[c.at] = c.to
		if _, _, err := cm.Parse(b[:]); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, _, err := cm.Parse(good[:255]); err != cm.ErrSize {
		t.Errorf("Parse of 255 bytes: %v", err)
	}
}

func TestUnsupportedReplyToGetAndSetOnly(t *testing.T) {
	for _, c := range []struct {
		name                   string
		class, version, method byte
		want                   uint16 // 0: no reply
	}{
		{"Get of performance counters", 4, 1, cm.MethodGet, cm.StatusBadVersion},
		{"Set of a vendor class", 9, 1, cm.MethodSet, cm.StatusBadVersion},
		{"Get of the CM class", cm.ClassCM, 2, cm.MethodGet, cm.StatusBadAttrPair},
		{"GetResp", 4, 1, cm.MethodGet | cm.MethodResponse, 0},
		{"Send", 4, 1, cm.MethodSend, 0},
		{"Trap", 4, 1, 5, 0},
	} {
		var b, reply [cm.MADSize]byte
		h := cm.Header{BaseVersion: 1, Class: c.class, ClassVersion: c.version, Method: c.method, TID: 0x1122, Attribute: 0x12}
		h.Put(b[:])
		got := cm.UnsupportedReply(b[:], &reply)
		a, _ := cm.ParseHeader(reply[:])
		switch {
		case got != (c.want != 0):
			t.Errorf("%s: unexpected reply %v", c.name, got)
		case got && (a.Status != c.want || a.Method != 0x81 || a.TID != 0x1122 || a.Class != c.class):
			t.Errorf("%s: reply %+v, want status %#x", c.name, a, c.want)
		}
	}
}

func TestIPHeader(t *testing.T) {
	for _, h := range []cm.IPHeader{
		{SrcPort: 4711, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")},
		{SrcPort: 1, Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fe80::2")},
	} {
		var b [cm.IPHeaderSize]byte
		h.Put(b[:])
		if got, err := cm.ParseIPHeader(b[:]); err != nil || got != h {
			t.Errorf("%v decoded as %v, %v", h, got, err)
		}
	}
	bad := make([]byte, cm.IPHeaderSize)
	for name, b := range map[string][]byte{"empty": nil, "no IP version": bad, "another version": append([]byte{1, 0x40}, bad...)} {
		if _, err := cm.ParseIPHeader(b); err != cm.ErrIPHeader {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDescribeNamesIdentifiersServiceAndReason(t *testing.T) {
	var lines []string
	for _, file := range []string{"cm-reject", "cm-udaddy"} {
		for _, b := range fixtureMADs(t, "../pcap-fixtures/"+file+".pcap") {
			_, m, err := cm.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			line := m.Attribute().String()
			for _, f := range cm.Describe(m) {
				line += fmt.Sprintf(" %s=%v", f.Name, f.Value)
				if _, err := json.Marshal(f.Value); err != nil {
					t.Errorf("%s: %v", f.Name, err)
				}
			}
			lines = append(lines, line)
		}
	}
	got := strings.Join(lines, "\n")
	for _, want := range []string{
		"REQ local_id=0x81f69d service_id=0x1061f3f port_space=TCP port=7999 src=10.77.0.12:58327 dst=10.77.0.11:7999 qpn=0x11",
		"REJ local_id=0x0 remote_id=0x81f69d about=REQ reason=8 reason_name=invalid service ID",
		"SIDR_REQ request_id=0x4d2694e8 service_id=0x1111c06 port_space=UDP port=7174 src=10.77.0.12:45029 dst=10.77.0.11:7174",
		"SIDR_REP request_id=0x4d2694e8 status=0 qpn=0x37 qkey=0x1234567 service_id=0x1111c06",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range fixtures(f) {
		for _, b := range fixtureMADs(f, file) {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, m, err := cm.Parse(b)
		if err != nil {
			var reply [cm.MADSize]byte
			cm.UnsupportedReply(b, &reply)
			return
		}
		cm.Describe(m)
		var once, twice [cm.MADSize]byte
		cm.Put(&once, h.TID, h.Modifier, m)
		h2, m2, err := cm.Parse(once[:])
		if err != nil || h2.Attribute != h.Attribute {
			t.Fatalf("an encoded MAD does not parse: %v", err)
		}
		cm.Put(&twice, h2.TID, h2.Modifier, m2)
		if once != twice {
			t.Fatalf("encoding it again gives a different MAD:\n%x\n%x", once, twice)
		}
	})
}
