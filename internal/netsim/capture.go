package netsim

import (
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
		pause := f.PauseFrame()
		r.frame = pause.AppendFrame(r.frame[:0])
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
