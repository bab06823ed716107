package netsim

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"softroce/internal/network"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
)

// A link is the link of a NIC to its port of the network.
type link struct {
	shared  *shared
	nic     int32
	blocked bool // the last Send was refused
	closed  bool
}

// What the links of all NICs of a simulation share.
type shared struct {
	network *network.Network
	memory  []byte              // of all programs: zeros, which they only send to each other
	mapped  mrtable.Memory      // memory, for regions
	tails   [maxBatch][1][]byte // payload of the frames that the last Receive returned
	held    []*network.Frame    // these frames
}

func newShared(n *network.Network) *shared {
	memory := nic.NewPage(messageSize)
	return &shared{network: n, memory: memory, mapped: mrtable.HeapMemory(memory)}
}

// maxBatch is the most frames of a Send or a Receive.
const maxBatch = 64

// linkMTU is the size of the largest IP packet in bytes.
const linkMTU = network.MaxSize - packet.EthernetLen - network.FCSLen

// frameSize returns the size on Ethernet of a packet of IPv4 with n bytes from BTH to pad.
func frameSize(n int) int {
	return packet.EthernetLen + packet.IPv4Len + packet.UDPLen + n + packet.ICRCLen + network.FCSLen
}

// Send implements wire.Link.
func (l *link) Send(_ int64, batch []wire.TxFrame) (int, error) {
	if l.closed {
		return 0, wire.ErrClosed
	}
	l.blocked = false
	n := l.shared.network
	for i := range batch {
		t := &batch[i]
		to := nicOf(t.Path.Dst)
		if to < 0 || to >= n.NICs() || frameSize(t.Len) > network.MaxSize {
			t.Dropped = true
			continue
		}
		prio := t.Path.SwitchPriority()
		if !n.Room(int(l.nic), prio) {
			l.blocked = true
			return i, nil
		}
		f := n.Frame()
		f.Size = int32(frameSize(t.Len))
		f.SetFlow(int(l.nic), to, t.Path.SrcPort)
		f.Priority, f.ECT, f.CE = prio, t.Path.TClass&3 != 0, t.CE || t.Path.TClass&3 == 3
		setData(f, t)
		n.Send(f)
	}
	return len(batch), nil
}

// pathLen is how many bytes of a frame's data are what its receiver needs of the path: the UDP
// source port, the traffic class and the hop limit. The headers follow.
const pathLen = 4

// setData sets the data of f. They have no payload: programs only send their memory, which has
// zeros and does not change, so that any part of it has the same contents.
func setData(f *network.Frame, t *wire.TxFrame) {
	p := t.Path
	f.Data = append(f.Data, byte(p.SrcPort>>8), byte(p.SrcPort), p.TClass, p.HopLimit)
	f.Data = append(f.Data, t.Head[:t.HeadLen]...)
}

// headers returns what the packet of f has from the BTH on, without payload.
func headers(f *network.Frame) []byte { return f.Data[pathLen:] }

// payloadLen returns how many bytes follow the headers of f, pad included.
func payloadLen(f *network.Frame) int { return int(f.Size) - frameSize(len(headers(f))) }

func srcPort(f *network.Frame) uint16 { return binary.BigEndian.Uint16(f.Data) }
func hopLimit(f *network.Frame) uint8 { return f.Data[3] }

// tclass returns the traffic class of a frame with its mark.
func tclass(f *network.Frame) uint8 {
	t := f.Data[2]
	if f.CE {
		t |= 3
	}
	return t
}

// Receive implements wire.Link.
func (l *link) Receive(_ int64, batch []wire.RxFrame) (n int, err error) {
	if l.closed {
		return 0, wire.ErrClosed
	}
	s := l.shared
	for _, f := range s.held {
		s.network.Release(f)
	}
	s.held = s.held[:0]
	for ; n < min(len(batch), maxBatch); n++ {
		f := s.network.Receive(int(l.nic))
		if f == nil {
			break
		}
		s.held = append(s.held, f)
		r := &batch[n]
		*r = wire.RxFrame{Head: headers(f), Src: nicAddr(int(f.Src)), Dst: nicAddr(int(l.nic)), SrcPort: srcPort(f), TClass: tclass(f),
			HopLimit: hopLimit(f), SrcMAC: nicMAC(int(f.Src))}
		if size := payloadLen(f); size > 0 {
			s.tails[n][0] = s.memory[:size]
			r.Tail = s.tails[n][:]
		}
	}
	return n, nil
}

// NextDeadline implements wire.Link. When a port has room again the simulation steps the NIC.
func (l *link) NextDeadline() int64 {
	if l.shared.network.Pending(int(l.nic)) {
		return 1
	}
	return 0
}

// CopyPayload implements wire.Link: frames do not refer to what may change.
func (l *link) CopyPayload() {}

// HoldsReferences implements wire.Referrer.
func (l *link) HoldsReferences() bool { return false }

// AppendFDs and OnReady implement wire.Link.

func (l *link) AppendFDs(fds []unix.PollFd) []unix.PollFd { return fds }
func (l *link) OnReady(func())                            {}

// Capabilities implements wire.Link.
func (l *link) Capabilities() wire.Capabilities {
	return wire.Capabilities{MTU: linkMTU, MaxBatch: maxBatch, PayloadUnread: true, PFC: l.shared.network.PFC()}
}

// Paused implements wire.Pauser.
func (l *link) Paused() uint8 { return l.shared.network.Blocked(int(l.nic)) }

// Close implements wire.Link.
func (l *link) Close() error {
	l.closed = true
	return nil
}

// nicMAC returns the MAC of a NIC.
func nicMAC(nic int) [6]byte {
	m := [6]byte{2}
	binary.BigEndian.PutUint32(m[2:], uint32(nic+1))
	return m
}

// nicOf returns the NIC that has an address, if there is one.
func nicOf(a netip.Addr) int {
	b := a.As4()
	return int(binary.BigEndian.Uint32(b[:])&0xffffff) - 1
}

// nicAddr returns the address of a NIC, in 10.0.0.0/8.
func nicAddr(nic int) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|uint32(nic+1))
	return netip.AddrFrom4(a)
}
