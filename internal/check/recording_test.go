package check

import (
	"encoding/binary"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// A recording is a capture of untagged IPv4 packets that can be changed. Changed packets get the
// right ICRC.
type recording struct {
	testing.TB
	rs []capture.Record
}

// Offsets in the frames of a recording.
const (
	atIP  = packet.EthernetLen
	atUDP = atIP + packet.IPv4Len
	atBTH = atUDP + packet.UDPLen
)

func load(t testing.TB, file string) *recording {
	t.Helper()
	r, err := capture.Open(fixtures + "/" + file + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tp := &recording{TB: t}
	for rec, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := capture.Parse(rec); err == nil {
			rec.No = 0
			tp.rs = append(tp.rs, rec)
		}
	}
	return tp
}

// parse returns the i-th packet.
func (t *recording) parse(i int) *capture.Packet {
	t.Helper()
	p, err := capture.Parse(t.rs[i])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nth returns the index of the n-th packet with the opcode, from 0.
func (t *recording) nth(o packet.Opcode, n int) int {
	t.Helper()
	for i := range t.rs {
		if t.parse(i).Opcode == o {
			if n == 0 {
				return i
			}
			n--
		}
	}
	t.Fatalf("too few %v", o)
	return 0
}

// edit changes headers, addressing and payload of the i-th packet.
func (t *recording) edit(i int, f func(p *capture.Packet)) {
	t.Helper()
	p := t.parse(i)
	f(p)
	var tx packet.Tx
	tx.Set(&p.Header, p.Payload)
	t.rs[i].Data = packet.AppendFrame(nil, &p.Addressing, &tx)
	t.rs[i].Length = len(t.rs[i].Data)
}

// raw changes the bytes of the i-th frame, and sets its checksum and ICRC.
func (t *recording) raw(i int, f func(frame []byte)) {
	b := append([]byte(nil), t.rs[i].Data...)
	f(b)
	t.rs[i].Data = b
	t.fixChecksums(i)
}

// damage inverts a bit of the ICRC of the i-th frame.
func (t *recording) damage(i int) {
	t.rs[i].Data = append([]byte(nil), t.rs[i].Data...)
	t.rs[i].Data[len(t.rs[i].Data)-1] ^= 1
}

// cut truncates the transport part to n bytes before the ICRC, or extends it with zeros.
func (t *recording) cut(i, n int) {
	b := append([]byte(nil), t.rs[i].Data[:len(t.rs[i].Data)-packet.ICRCLen]...)
	b = append(b, make([]byte, atBTH+packet.MaxHeaderLen)...)[:atBTH+n+packet.ICRCLen]
	be := binary.BigEndian
	be.PutUint16(b[atIP+2:], uint16(len(b)-atIP))
	be.PutUint16(b[atUDP+4:], uint16(len(b)-atUDP))
	t.rs[i].Data, t.rs[i].Length = b, len(b)
	t.fixChecksums(i)
}

// fixChecksums sets the IPv4 checksum and the ICRC.
func (t *recording) fixChecksums(i int) {
	b := t.rs[i].Data
	ip := b[atIP:atUDP]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	p := t.parse(i)
	n := len(b) - packet.ICRCLen
	binary.LittleEndian.PutUint32(b[n:], packet.ICRCBytes(&p.Addressing, b[atBTH:n]))
}

func (t *recording) drop(i int) { t.rs = append(t.rs[:i:i], t.rs[i+1:]...) }

// insert inserts r at index i, with the time of the frame before it.
func (t *recording) insert(i int, r capture.Record) {
	if i > 0 {
		r.Time = t.rs[i-1].Time
	}
	rs := append([]capture.Record{}, t.rs[:i]...)
	t.rs = append(append(rs, r), t.rs[i:]...)
}

// swap exchanges two frames, not their times.
func (t *recording) swap(i, j int) {
	t.rs[i], t.rs[j] = t.rs[j], t.rs[i]
	t.rs[i].Time, t.rs[j].Time = t.rs[j].Time, t.rs[i].Time
}

// shift delays all frames from the i-th on.
func (t *recording) shift(i int, d time.Duration) {
	for ; i < len(t.rs); i++ {
		t.rs[i].Time = t.rs[i].Time.Add(d)
	}
}

// number sets Identifications that count up in the present order, so that no packet looks late.
func (t *recording) number() {
	ids := map[[4]byte]uint16{}
	for i := range t.rs {
		t.raw(i, func(b []byte) {
			src := [4]byte(b[atIP+12:])
			ids[src]++
			binary.BigEndian.PutUint16(b[atIP+4:], ids[src])
		})
	}
}

// judge judges the recording.
func (t *recording) judge() *Report {
	rs := append([]capture.Record{}, t.rs...)
	for i := range rs {
		rs[i].No = i + 1
	}
	return Records(rs)
}
