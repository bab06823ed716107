package check

import (
	"encoding/binary"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// A tape is a capture of untagged IPv4 packets that can be cut and changed. What is
// changed is signed again: the ICRC is right.
type tape struct {
	testing.TB
	rs []capture.Record
}

// Offsets in the frames of a tape.
const (
	atIP  = packet.EthernetLen
	atUDP = atIP + packet.IPv4Len
	atBTH = atUDP + packet.UDPLen
)

func load(t testing.TB, file string) *tape {
	t.Helper()
	r, err := capture.Open(fixtures + "/" + file + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	tp := &tape{TB: t}
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
func (t *tape) parse(i int) *capture.Packet {
	t.Helper()
	p, err := capture.Parse(t.rs[i])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nth returns the place of the n-th packet with the opcode, from 0.
func (t *tape) nth(o packet.Opcode, n int) int {
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
func (t *tape) edit(i int, f func(p *capture.Packet)) {
	t.Helper()
	p := t.parse(i)
	f(p)
	var tx packet.Tx
	tx.Set(&p.Header, p.Payload)
	t.rs[i].Data = packet.AppendFrame(nil, &p.Addressing, &tx)
	t.rs[i].Length = len(t.rs[i].Data)
}

// raw changes the bytes of the i-th frame, and then signs it.
func (t *tape) raw(i int, f func(frame []byte)) {
	b := append([]byte(nil), t.rs[i].Data...)
	f(b)
	t.rs[i].Data = b
	t.sign(i)
}

// cut shortens the transport part to n bytes before the ICRC, or lengthens it with zeros.
func (t *tape) cut(i, n int) {
	b := append([]byte(nil), t.rs[i].Data[:len(t.rs[i].Data)-packet.ICRCLen]...)
	b = append(b, make([]byte, atBTH+packet.MaxHeaderLen)...)[:atBTH+n+packet.ICRCLen]
	be := binary.BigEndian
	be.PutUint16(b[atIP+2:], uint16(len(b)-atIP))
	be.PutUint16(b[atUDP+4:], uint16(len(b)-atUDP))
	t.rs[i].Data, t.rs[i].Length = b, len(b)
	t.sign(i)
}

// sign computes IPv4 checksum and ICRC anew.
func (t *tape) sign(i int) {
	b := t.rs[i].Data
	ip := b[atIP:atUDP]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	p := t.parse(i)
	n := len(b) - packet.ICRCLen
	binary.LittleEndian.PutUint32(b[n:], packet.ICRCBytes(&p.Addressing, b[atBTH:n]))
}

func (t *tape) drop(i int) { t.rs = append(t.rs[:i:i], t.rs[i+1:]...) }

// insert puts r at place i, at the time of the one before it.
func (t *tape) insert(i int, r capture.Record) {
	if i > 0 {
		r.Time = t.rs[i-1].Time
	}
	rs := append([]capture.Record{}, t.rs[:i]...)
	t.rs = append(append(rs, r), t.rs[i:]...)
}

// swap exchanges two frames, not their times.
func (t *tape) swap(i, j int) {
	t.rs[i], t.rs[j] = t.rs[j], t.rs[i]
	t.rs[i].Time, t.rs[j].Time = t.rs[j].Time, t.rs[i].Time
}

// shift moves all from the i-th on in time.
func (t *tape) shift(i int, d time.Duration) {
	for ; i < len(t.rs); i++ {
		t.rs[i].Time = t.rs[i].Time.Add(d)
	}
}

// number gives the packets Identifications that count upward in their present order, so
// that none looks late.
func (t *tape) number() {
	ids := map[[4]byte]uint16{}
	for i := range t.rs {
		t.raw(i, func(b []byte) {
			src := [4]byte(b[atIP+12:])
			ids[src]++
			binary.BigEndian.PutUint16(b[atIP+4:], ids[src])
		})
	}
}

// judge judges the tape.
func (t *tape) judge() *Report {
	rs := append([]capture.Record{}, t.rs...)
	for i := range rs {
		rs[i].No = i + 1
	}
	return Records(rs)
}
