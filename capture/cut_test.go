package capture

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"softroce/packet"
)

// A frame that the capture truncated is decoded as far as it goes: without the headers that are
// missing, and without an ICRC.
func TestCutPacketsAreDecoded(t *testing.T) {
	whole := markedFrame(packet.WriteOnly, "192.0.2.1", "192.0.2.2", strings.Repeat("x", 200)) // an even opcode: no tag
	const bth = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	for _, c := range []struct {
		bytes   int
		want    string // text of the line
		payload int    // bytes that are left
		err     error
	}{
		{bth + 12 + 16 + 30, "reth.length=4000000000 payload_len=200 cut=100/274", 30, nil},
		{bth + 12 + 16, "payload_len=200 cut=70/274", 0, nil},
		{bth + 12 + 15, `becn=1 resv6=0x1 resv7=0x2 cut=69/274`, 0, packet.ErrTruncated},
		{bth + 12, `error="offset 42: frame is shorter than its headers announce"`, 0, packet.ErrTruncated},
		{len(whole) - 1, "payload_len=200 cut=273/274", 200, nil},
	} {
		rec := Record{No: 1, Time: time.Unix(1, 0), LinkType: Ethernet, Length: len(whole), Data: whole[:c.bytes]}
		p, err := ParseCut(rec)
		if err != nil || !p.Cut || len(p.Payload) != c.payload || !errors.Is(p.Err, c.err) || p.PSN != 0xfedcba {
			t.Errorf("%d bytes: %+v, %v", c.bytes, p, err)
			continue
		}
		var file, out bytes.Buffer
		w, _ := NewWriter(&file, "a")
		if err := errors.Join(w.WriteRecord(0, rec), w.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(&file, "f")
		if err != nil {
			t.Fatal(err)
		}
		sum, err := Decode(&out, r, DecodeOptions{})
		if err != nil || !strings.Contains(out.String(), c.want) || sum != (Summary{RoCE: 1, Cut: 1}) {
			t.Errorf("%d bytes: %v, %+v\n%s", c.bytes, err, sum, out.String())
		}
	}
	for n := range bth + 12 { // without a BTH there is no packet
		if _, err := ParseCut(Record{LinkType: Ethernet, Length: len(whole), Data: whole[:n]}); err == nil {
			t.Errorf("%d bytes: no error", n)
		}
	}
	if p, err := ParseCut(Record{LinkType: Ethernet, Length: len(whole), Data: whole}); err != nil || p.Cut || !p.ICRCOK() {
		t.Errorf("whole frame: %v", err)
	}
	if _, err := ParseCut(Record{LinkType: Ethernet, Length: 1 << 40, Data: whole[:60]}); !errors.Is(err, packet.ErrTruncated) {
		t.Errorf("a length that no frame has: %v", err)
	}
}

// What a truncated frame claims to have been costs no memory, unless it may be a RoCEv2 packet.
func TestCutFramesAllocateLittle(t *testing.T) {
	whole := markedFrame(packet.WriteOnly, "192.0.2.1", "192.0.2.2", strings.Repeat("x", 200))
	other := bytes.Clone(whole)
	other[packet.EthernetLen+packet.IPv4Len+3]++ // another UDP port
	const n = 100
	for _, c := range []struct {
		name   string
		frame  []byte
		length int
		most   uint64
	}{
		{"a RoCEv2 packet of 1 MiB", whole[:80], 1 << 20, 4 << 10},
		{"one of 64 KiB", whole[:80], 1 << 16, 100 << 10},
		{"another protocol", other[:80], 1 << 16, 4 << 10},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			ParseCut(Record{LinkType: Ethernet, Length: c.length, Data: c.frame})
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / n; each > c.most {
			t.Errorf("%s: %d bytes for each, want at most %d", c.name, each, c.most)
		}
	}
}
