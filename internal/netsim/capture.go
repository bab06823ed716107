package netsim

import (
	"softroce/capture"
	"softroce/internal/network"
	"softroce/packet"
)

// A recorder writes the frames of a port, in both directions, as they are on the wire. Time begins
// at the Unix epoch.
type recorder struct {
	w      *capture.Writer
	memory []byte // of all programs
	iface  int
	frame  []byte
	err    error
}

func (r *recorder) record(now int64, _ bool, f *network.Frame) {
	if r.err != nil {
		return
	}
	if f.Pause {
		pause := f.PauseFrame()
		r.frame = pause.AppendFrame(r.frame[:0])
	} else {
		r.frame = r.appendFrame(r.frame[:0], f)
	}
	r.err = r.w.WriteFrame(now, r.iface, r.frame)
}

func (r *recorder) appendFrame(b []byte, f *network.Frame) []byte {
	src, dst := int(f.Src), int(f.Dst)
	a := packet.Addressing{SrcMAC: nicMAC(src), DstMAC: nicMAC(dst), Src: nicAddr(src), Dst: nicAddr(dst), SrcPort: srcPort(f),
		TClass: tclass(f), HopLimit: hopLimit(f)}
	head, payload := headers(f), r.memory[:payloadLen(f)]
	t := packet.Tx{HeadLen: packet.BTHLen, Payload: [][]byte{head[packet.BTHLen:], payload}, Len: len(head) + len(payload)}
	copy(t.Head[:], head[:packet.BTHLen])
	return packet.AppendFrame(b, &a, &t)
}
