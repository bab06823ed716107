package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"softroce/internal/ib"
	"softroce/packet"
)

// words lays out numbers in a byte order: uint16, uint32 and bytes.
func words(order binary.AppendByteOrder, parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = order.AppendUint32(b, uint32(p))
		case uint16:
			b = order.AppendUint16(b, p)
		case []byte:
			b = append(b, p...)
		case string:
			b = append(b, p...)
		}
	}
	return b
}

// blockOf lays out a pcapng block.
func blockOf(order binary.AppendByteOrder, kind int, parts ...any) []byte {
	body := words(order, parts...)
	body = append(body, make([]byte, -len(body)&3)...)
	size := len(body) + blockLen
	return words(order, kind, size, body, size)
}

func sectionOf(order binary.AppendByteOrder) []byte {
	return blockOf(order, blockSection, int(byteOrderMark), uint16(1), uint16(0), -1, -1)
}

// pcapOf lays out a classic pcap with one frame at 5 s and 7 ticks.
func pcapOf(order binary.AppendByteOrder, magic int, data []byte) []byte {
	return words(order, magic, uint16(2), uint16(4), 0, 0, 65535, 1, 5, 7, len(data), len(data)+3, data)
}

var bothOrders = []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian}

func TestReaderAcceptsFormatsByteOrdersAndResolutions(t *testing.T) {
	data := frame(packet.SendOnly, 1, 2, "abc")
	n := len(data)
	for _, o := range bothOrders {
		section := sectionOf(o)
		ether := func(options ...any) []byte {
			return blockOf(o, blockInterface, append([]any{uint16(1), uint16(0), 0}, options...)...)
		}
		enhanced := func(hi, lo int) []byte { return blockOf(o, blockEnhanced, 0, hi, lo, n, n+3, data) }
		resolution := func(r byte) []any { return []any{uint16(9), uint16(1), []byte{r, 0, 0, 0}, uint16(0), uint16(0)} }
		for name, c := range map[string]struct {
			file []byte
			want time.Time
		}{
			"pcap, microseconds": {pcapOf(o, pcapMicro, data), time.Unix(5, 7000)},
			"pcap, nanoseconds":  {pcapOf(o, pcapNano, data), time.Unix(5, 7)},
			"microseconds":       {words(o, section, ether(), enhanced(1, 0)), time.UnixMicro(1 << 32)},
			"nanoseconds":        {words(o, section, ether(resolution(9)...), enhanced(1, 1)), time.Unix(0, 1<<32+1)},
			"picoseconds":        {words(o, section, ether(resolution(12)...), enhanced(1, 999)), time.Unix(0, (1<<32+999)/1000)},
			"seconds":            {words(o, section, ether(resolution(0)...), enhanced(0, 99)), time.Unix(99, 0)},
			"2^-10 s":            {words(o, section, ether(resolution(0x8a)...), enhanced(0, 1024+512)), time.Unix(1, 5e8)},
			"2^-63 s":            {words(o, section, ether(resolution(0xbf)...), enhanced(0xc0000000, 0)), time.Unix(1, 5e8)},
			"offset": {words(o, section, ether(uint16(14), uint16(8), offsetOf(o, 1000)), enhanced(0, 5)),
				time.Unix(1000, 5000)},
			"obsolete packet block": {words(o, section, ether(), blockOf(o, blockPacket, uint16(0), uint16(9), 0, 3, n, n+3, data)), time.UnixMicro(3)},
			"simple packet block":   {words(o, section, ether(), blockOf(o, blockSimple, n, data)), time.Unix(0, 0)},
			"unknown blocks and options": {words(o, section, blockOf(o, 0xbad, "whatever"), ether(uint16(2), uint16(3), "eth\x00"), blockOf(o, 5),
				enhanced(0, 4)), time.UnixMicro(4)},
			"second section": {words(o, section, ether(resolution(9)...), sectionOf(o), ether(), enhanced(0, 4)), time.UnixMicro(4)},
		} {
			for _, rec := range readAll(t, c.file) {
				if !rec.Time.Equal(c.want) || !bytes.Equal(rec.Data, data) || rec.No != 1 {
					t.Errorf("%v, %s: %v %x, want %v", o, name, rec.Time, rec.Data, c.want)
				}
			}
			if len(readAll(t, c.file)) != 1 {
				t.Errorf("%v, %s: %d frames", o, name, len(readAll(t, c.file)))
			}
		}
	}
}

func offsetOf(o binary.AppendByteOrder, seconds uint64) []byte { return o.AppendUint64(nil, seconds) }

func TestSimplePacketIsTruncatedToSnapLength(t *testing.T) {
	le := binary.LittleEndian
	recs := readAll(t, words(le, sectionOf(le), blockOf(le, blockInterface, uint16(1), uint16(0), 5), blockOf(le, blockSimple, 100, "12345\x00\x00\x00")))
	if len(recs) != 1 || string(recs[0].Data) != "12345" || recs[0].Length != 100 {
		t.Errorf("%+v", recs)
	}
}

func TestTruncatedFileYieldsFramesThenError(t *testing.T) {
	var ng bytes.Buffer
	w, err := NewWriter(&ng, "a")
	if err != nil {
		t.Fatal(err)
	}
	data := frame(packet.SendOnly, 1, 2, "abc")
	for i := range 3 {
		w.WriteFrame(int64(i), 0, data)
	}
	w.Flush()
	classic := pcapOf(binary.LittleEndian, pcapMicro, data)
	for range 2 {
		classic = append(classic, classic[pcapHeaderLen:][:pcapRecordLen+len(data)]...)
	}
	for name, whole := range map[string][]byte{"x.pcap": classic, "x.pcapng": ng.Bytes()} {
		recs := readAll(t, whole)
		ends := map[int64]int{int64(len(whole)): 3} // where a frame ends: frames before
		for i, rec := range recs {
			ends[rec.Offset] = i
		}
		for n := 4; n < len(whole); n++ {
			checkCut(t, name, whole[:n], recs, ends)
		}
	}
}

// checkCut reads a file that was cut somewhere.
func checkCut(t *testing.T, name string, b []byte, recs []Record, ends map[int64]int) {
	t.Helper()
	n := int64(len(b))
	var got int
	r, err := NewReader(bytes.NewReader(b), name)
	for err == nil {
		if _, err = r.Next(); err == nil {
			got++
		}
	}
	if r != nil {
		if _, again := r.Next(); again != err {
			t.Errorf("%s cut at %d: %v, then %v", name, n, err, again)
		}
	}
	want := 0
	for _, rec := range recs {
		if end := rec.Offset; n > end {
			want = rec.No - 1
		}
	}
	if whole, ok := ends[n]; ok {
		if got != whole || err != io.EOF {
			t.Errorf("%s cut at %d, between frames: %d frames, %v", name, n, got, err)
		}
		return
	}
	var fe *FormatError
	boundary := err == io.EOF && n < recs[0].Offset // between blocks before the first frame
	if !boundary && (!errors.Is(err, ErrTruncated) || !errors.As(err, &fe) || fe.Offset >= n || !strings.HasPrefix(err.Error(), name+": offset ")) {
		t.Errorf("%s cut at %d: %v", name, n, err)
	}
	if got != want {
		t.Errorf("%s cut at %d: %d frames, want %d", name, n, got, want)
	}
}

func TestReaderErrorsNameFileOffsetAndReason(t *testing.T) {
	le := binary.LittleEndian
	section := sectionOf(le)
	ether := blockOf(le, blockInterface, uint16(1), uint16(0), 0)
	interfaceWith := func(parts ...any) []byte {
		return words(le, section, blockOf(le, blockInterface, append([]any{uint16(1), uint16(0), 0}, parts...)...))
	}
	for name, c := range map[string]struct {
		file   []byte
		reason error
		text   string
	}{
		"empty":       {nil, ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: file is empty"},
		"two bytes":   {[]byte("ab"), ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: file has 2 bytes"},
		"text":        {[]byte("#!/bin/sh"), ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: begins with 23 21 2f 62"},
		"gzip":        {[]byte("\x1f\x8b\x08\x00"), ErrNotCapture, "f: offset 0: not a pcap, pcapng or ERF capture: compressed by gzip, uncompress it first"},
		"pcap header": {words(le, pcapMicro, 1), ErrTruncated, "f: offset 0: file is truncated: file header of 24 bytes ends after 8"},
		"pcap version": {words(le, pcapMicro, uint16(9), uint16(4), 0, 0, 0, 1), ErrCorrupt,
			"f: offset 4: capture is corrupt: pcap version 9"},
		"pcap link type": {words(le, pcapMicro, uint16(2), uint16(4), 0, 0, 0, 105), ErrLinkType,
			"f: offset 20: link type 105: unsupported link type: want Ethernet (1), raw IP (101), Linux cooked (113, 276), InfiniBand (247) or ERF (197)"},
		"pcap record cut":   {pcapOf(le, pcapMicro, make([]byte, 9))[:47], ErrTruncated, "f: offset 24: file is truncated: record of 25 bytes ends after 23"},
		"pcap record, huge": {words(le, pcapOf(le, pcapMicro, nil), 0, 0, 1<<20+1, 0), ErrCorrupt, "f: offset 48: capture is corrupt: record of 1048577 bytes"},
		"byte order mark": {words(le, blockSection, 28, 0x11223344, 0, 0, 0, 28), ErrCorrupt,
			"f: offset 8: capture is corrupt: byte order mark 44 33 22 11"},
		"section of 12 bytes": {words(le, blockSection, 12, int(byteOrderMark), 12), ErrCorrupt, "f: offset 4: capture is corrupt: block of 12 bytes"},
		"section of 16 bytes": {words(le, blockSection, 16, int(byteOrderMark), 16), ErrCorrupt, "f: offset 0: capture is corrupt: section header of 16 bytes"},
		"pcapng version": {blockOf(le, blockSection, int(byteOrderMark), uint16(2), uint16(0), -1, -1), ErrCorrupt,
			"f: offset 12: capture is corrupt: pcapng version 2"},
		"block of 13 bytes":     {words(le, section, 5, 13, 0, 0), ErrCorrupt, "f: offset 32: capture is corrupt: block of 13 bytes"},
		"block of 8 bytes":      {words(le, section, 5, 8, 8), ErrCorrupt, "f: offset 32: capture is corrupt: block of 8 bytes"},
		"huge block":            {words(le, section, blockEnhanced, 1<<21, 0), ErrCorrupt, "f: offset 32: capture is corrupt: block of 2097152 bytes"},
		"unknown block cut":     {words(le, section, 99, 100, 1, 2), ErrTruncated, "f: offset 28: file is truncated: block of 100 bytes ends after 16"},
		"lengths differ":        {words(le, section, 5, 16, 0, 20), ErrCorrupt, "f: offset 40: capture is corrupt: block of 16 bytes ends with length 20"},
		"interface of 16 bytes": {words(le, section, blockOf(le, blockInterface, 1)), ErrCorrupt, "f: offset 28: capture is corrupt: interface description of 16 bytes"},
		"option runs over":      {interfaceWith(uint16(2), uint16(5), "eth0"), ErrCorrupt, "f: offset 44: capture is corrupt: option of 5 bytes runs past its block"},
		"resolution, empty":     {interfaceWith(uint16(9), uint16(0)), ErrCorrupt, "f: offset 44: capture is corrupt: option 9 has 0 bytes, "},
		"resolution 10^-20":     {interfaceWith(uint16(9), uint16(1), "\x14\x00\x00\x00"), ErrCorrupt, "f: offset 44: capture is corrupt: option 9 has 1 bytes, 14"},
		"resolution 2^-64":      {interfaceWith(uint16(9), uint16(1), "\xc0\x00\x00\x00"), ErrCorrupt, "f: offset 44: capture is corrupt: option 9 has 1 bytes, c0"},
		"time offset, short":    {interfaceWith(uint16(14), uint16(4), 0), ErrCorrupt, "f: offset 44: capture is corrupt: option 14 has 4 bytes, 00 00 00 00"},
		"packet, no interface":  {words(le, section, blockOf(le, blockEnhanced, 0, 0, 0, 0, 0)), ErrCorrupt, "f: offset 36: capture is corrupt: interface 0 of 0"},
		"packet, interface -1":  {words(le, section, ether, blockOf(le, blockEnhanced, -1, 0, 0, 0, 0)), ErrCorrupt, "f: offset 56: capture is corrupt: interface 4294967295 of 1"},
		"packet block, short":   {words(le, section, ether, blockOf(le, blockEnhanced, 0)), ErrCorrupt, "f: offset 48: capture is corrupt: packet block of 16 bytes"},
		"packet over its block": {words(le, section, ether, blockOf(le, blockEnhanced, 0, 0, 0, 5, 5, "1234")), ErrCorrupt, "f: offset 68: capture is corrupt: packet of 5 bytes in a block of 36"},
		"simple, no interface": {words(le, section, blockOf(le, blockSimple, 0)), ErrCorrupt,
			"f: offset 28: capture is corrupt: simple packet block of 16 bytes, 0 interfaces"},
	} {
		r, err := NewReader(bytes.NewReader(c.file), "f")
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, c.reason) || err.Error() != c.text {
			t.Errorf("%s: %v\nwant %s", name, err, c.text)
		}
	}
}

func TestOpenErrorNamesFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("opening a directory: %v", err)
	}
	broken := errors.New("broken disk")
	b := pcapOf(binary.LittleEndian, pcapMicro, make([]byte, 100))
	r, err := NewReader(io.MultiReader(bytes.NewReader(b[:60]), iotest.ErrReader(broken)), "f")
	if err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, broken) || errors.Is(err, ErrTruncated) || err.Error() != "f: offset 60: broken disk" {
		t.Error(err)
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("not a capture"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(text); !errors.Is(err, ErrNotCapture) {
		t.Error(err)
	}
	if _, err := Load(text); !errors.Is(err, ErrNotCapture) {
		t.Error(err)
	}
}

func TestLoadReturnsPacketsBeforeError(t *testing.T) {
	good := frame(packet.SendOnly, 1, 2, "abc")
	file := filepath.Join(t.TempDir(), "f")
	for name, c := range map[string]struct {
		tail   []byte
		reason error
	}{
		"cut":             {[]byte{1}, ErrTruncated},
		"malformed frame": {words(binary.LittleEndian, 0, 0, 50, 50, good[:50]), packet.ErrTruncated},
	} {
		if err := os.WriteFile(file, append(pcapOf(binary.LittleEndian, pcapNano, good), c.tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		ps, err := Load(file)
		if len(ps) != 1 || !errors.Is(err, c.reason) {
			t.Errorf("%s: %d packets, %v", name, len(ps), err)
		}
	}
}

func TestFramesOfEachLinkTypeAreParsed(t *testing.T) {
	ether := frame(packet.SendOnly, 1, 2, "abc")
	ip := ether[packet.EthernetLen:]
	sll := append(make([]byte, 14), 8, 0)
	sll2 := append([]byte{8, 0}, make([]byte, 18)...)
	for _, c := range []struct {
		link   LinkType
		data   []byte
		reason error
		offset int
	}{
		{Ethernet, ether, nil, 0},
		{RawIP, ip, nil, 0},
		{LinuxSLL, append(sll, ip...), nil, 0},
		{LinuxSL2, append(sll2, ip...), nil, 0},
		{LinuxSLL, sll[:15], packet.ErrTruncated, 15},
		{LinuxSLL, append(make([]byte, 16), ip...), packet.ErrNotRoCE, 14},
		{LinuxSLL, append(sll, ip[:25]...), packet.ErrTruncated, 16 + 25},
		{LinkType(105), ether, packet.ErrNotRoCE, 0},
	} {
		p, err := Parse(Record{LinkType: c.link, Data: c.data})
		var pe *packet.ParseError
		if !errors.Is(err, c.reason) || errors.As(err, &pe) && pe.Offset != c.offset {
			t.Errorf("link type %d: %v, want %v at %d", c.link, err, c.reason, c.offset)
		}
		if err == nil && (string(p.Payload) != "abc" || !p.ICRCOK()) {
			t.Errorf("link type %d: %v", c.link, p)
		}
	}
}

func FuzzReader(f *testing.F) {
	data := frame(packet.SendOnly, 1, 2, "abc")
	for _, o := range bothOrders {
		f.Add(pcapOf(o, pcapMicro, data))
		f.Add(words(o, sectionOf(o), blockOf(o, blockInterface, uint16(1), uint16(0), 0, uint16(9), uint16(1), "\x09\x00\x00\x00"),
			blockOf(o, blockEnhanced, 0, 1, 2, len(data), len(data), data), blockOf(o, blockSimple, len(data), data)))
	}
	for _, b := range hostileNotes {
		f.Add(b)
	}
	for _, b := range [][]byte{ibFrame(false, 0, marked(packet.SendOnly), nil), ibFrame(true, 0, marked(packet.ReadRequest), nil), madFrame(0, ib.ClassSubnDirect, 1, 0x11, nil)} {
		f.Add(pcapFile(InfiniBand, b))
		f.Add(pcapFile(ERF, erfRecord(erfInfiniBand, 1, 0, b)))
		f.Add(erfRecord(erfInfiniBand, 1, 3, b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		r, err := NewReader(bytes.NewReader(b), "f")
		if err == nil {
			_, err = Decode(&out, r, DecodeOptions{All: true, JSON: len(b)%2 == 0, Short: len(b)%3 == 0})
		}
		if c := obeyedByTerminal(out.String()); c >= 0 {
			t.Fatalf("Decode prints a control character: %q", out.String()[:c+1])
		}
		var fe *FormatError
		if err != nil && (!errors.As(err, &fe) || fe.Offset < 0 || fe.Offset > int64(len(b))) {
			t.Fatal(err)
		}
	})
}

func TestExtremeTimesDoNotPanic(t *testing.T) {
	for _, i := range []ngInterface{{exp: 0, seconds: math.MaxInt64}, {exp: 19}, {binary: true, exp: 63}, {binary: true, exp: 0, seconds: math.MinInt64}} {
		for _, ticks := range []uint64{0, 1, math.MaxUint64} {
			epoch(i.time(ticks))
		}
	}
}
