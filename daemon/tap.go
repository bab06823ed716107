package daemon

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"time"

	"softroce/attach"
	"softroce/wire"
)

// tap is where captures take frames from: the cables of all NICs. While there is no
// capture it costs a load per batch.
type tap struct {
	clock  func() int64 // what the engines go by
	cables []*cable     // the index is the number of the capture's interface
}

// A cable is a NIC's link with the capture around it, which knows what it has seen twice: a
// frame between two ends in this daemon is recorded where it is sent, not again where it is
// received.
type cable struct {
	*wire.Capture
	name      string
	fabric    bool // both ends are here
	local     func(netip.Addr) bool
	receiving bool // the engine is in Receive
}

// add puts a capture around a link.
func (t *tap) add(name string, link wire.Link, iface wire.Interface, fabric bool) *cable {
	c := &cable{
		Capture: wire.NewCapture(link, nil, wire.CaptureOptions{MAC: iface.MAC, Wall: untranslated}),
		name:    name, fabric: fabric, local: owns(iface),
	}
	t.cables = append(t.cables, c)
	return c
}

// untranslated leaves the time of a frame what the engine says. A recording puts wall time in
// its place, for all cables by the same difference: an answer does not come before its question.
func untranslated(now int64) int64 { return now }

// owns returns the question whether an address is one of a NIC's on an interface: the
// interface's, or the one behind GID 0.
func owns(iface wire.Interface) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		if a == linkLocal(iface.MAC()) {
			return true
		}
		for _, p := range iface.Addresses() {
			if p.Addr() == a {
				return true
			}
		}
		return false
	}
}

// Receive implements wire.Link.
func (c *cable) Receive(now int64, batch []wire.RxFrame) (int, error) {
	c.receiving = true
	n, err := c.Capture.Receive(now, batch)
	c.receiving = false
	return n, err
}

// again reports whether a frame that is being received was recorded when it was sent.
// alone says that only this cable is recorded.
func (c *cable) again(frame []byte, alone bool) bool {
	if c.fabric {
		return !alone || c.local(source(frame))
	}
	return c.local(source(frame))
}

// source returns the source address of an Ethernet frame.
func source(frame []byte) netip.Addr {
	const etherType, ip = 12, 14
	var a netip.Addr
	switch {
	case len(frame) >= ip+20 && binary.BigEndian.Uint16(frame[etherType:]) == 0x0800:
		a, _ = netip.AddrFromSlice(frame[ip+12 : ip+16])
	case len(frame) >= ip+40 && binary.BigEndian.Uint16(frame[etherType:]) == 0x86dd:
		a, _ = netip.AddrFromSlice(frame[ip+8 : ip+24])
	}
	return a
}

// A strand is a recording's hold on one cable: the sink that the cable's capture writes to.
type strand struct {
	*recording
	cable  *cable
	alone  bool
	offset int64 // from the engines' time to wall time
}

// WriteFrame implements wire.FrameSink. It runs on the cable's engine.
func (s *strand) WriteFrame(now int64, iface int, frame []byte) error {
	if !s.cable.receiving || !s.cable.again(frame, s.alone) {
		s.write(now+s.offset, iface, frame)
	}
	return nil
}

// StartCapture implements attach.Capturer. A client that reads too slowly loses frames, and
// hears how many.
func (t *tap) StartCapture(w *os.File, device string) (attach.Capture, error) {
	return t.start(w, device, false)
}

// start begins a recording to w. If whole, the engines wait for a slow w and nothing is lost.
func (t *tap) start(w *os.File, device string, whole bool) (*recording, error) {
	var from []*cable
	var names []string
	for _, c := range t.cables {
		if device == "" || device == c.name {
			from = append(from, c)
			names = append(names, c.name)
		}
	}
	if len(from) == 0 {
		w.Close()
		return nil, syscall.ENODEV
	}
	r, err := newRecording(w, names, whole)
	if err != nil {
		w.Close()
		return nil, err
	}
	offset := time.Now().UnixNano() - t.clock()
	for i, c := range from {
		r.taps = append(r.taps, c.Attach(&strand{r, c, device != "", offset}, i))
	}
	return r, nil
}
