package netsim

import (
	"encoding/binary"

	"softroce/capture"
	"softroce/internal/network"
	"softroce/packet"
	"softroce/wire"
)

// A recorder writes the frames of a port, in both directions, as they are on the wire. Time begins
// at the Unix epoch.
type recorder struct {
	w     *capture.Writer
	iface int
	frame []byte
	err   error
}

func (r *recorder) record(now int64, _ bool, f *network.Frame) {
	if r.err != nil {
		return
	}
	if f.Pause {
		r.frame = appendPause(r.frame[:0], f)
	} else {
		r.frame = appendFrame(r.frame[:0], f)
	}
	r.err = r.w.WriteFrame(now, r.iface, r.frame)
}

func appendFrame(b []byte, f *network.Frame) []byte {
	p := f.Tag.(*wire.Path)
	a := packet.Addressing{SrcMAC: nicMAC(f.Src), DstMAC: nicMAC(f.Dst), Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort,
		TClass: tclass(f), HopLimit: p.HopLimit}
	t := packet.Tx{HeadLen: packet.BTHLen, Payload: [][]byte{f.Data[packet.BTHLen:], f.More[0]}, Len: len(f.Data) + len(f.More[0])}
	copy(t.Head[:], f.Data[:packet.BTHLen])
	return packet.AppendFrame(b, &a, &t)
}

// appendPause appends a pause frame (IEEE 802.1Qbb): opcode 0x0101, the priorities that it concerns
// and the time of each in units of 512 bits.
func appendPause(b []byte, f *network.Frame) []byte {
	be := binary.BigEndian
	b = append(b, 0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0)
	b = be.AppendUint16(b, 0x8808)
	b = be.AppendUint16(b, 0x0101)
	b = be.AppendUint16(b, 1<<f.Priority)
	for i := range uint8(network.Priorities) {
		quanta := uint16(0)
		if i == f.Priority && f.XOff {
			quanta = 0xffff
		}
		b = be.AppendUint16(b, quanta)
	}
	return append(b, make([]byte, f.Size-fcsLen-len(b))...)
}
