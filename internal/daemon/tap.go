package daemon

import (
	"os"
	"syscall"
	"time"

	"softroce/attach"
	"softroce/packet"
	"softroce/wire"
)

// tap is where captures take frames from: the cables of all NICs. While there is no
// capture it costs a load per batch.
type tap struct {
	clock func() int64  // what the engines go by
	links []*tappedLink // the index is the number of the capture's interface
}

// A cable is a NIC's link with the capture around it, which knows what it has seen twice: a
// frame between two ends in this daemon is recorded where it is sent, not again where it is
// received.
type tappedLink struct {
	*wire.CaptureLink
	name      string
	fabric    bool // both ends are here
	local     func(wire.Station) bool
	receiving bool // the engine is in Receive
}

// add puts a capture around a link.
func (t *tap) add(name string, link wire.Link, iface wire.Interface, fabric bool) *tappedLink {
	c := &tappedLink{
		CaptureLink: wire.NewCaptureLink(link, nil, wire.CaptureOptions{MAC: iface.MAC, Wall: engineTime}),
		name:        name, fabric: fabric, local: wire.Owns(iface),
	}
	t.links = append(t.links, c)
	return c
}

// untranslated leaves the time of a frame what the engine says. A recording puts wall time in
// its place, for all cables by the same difference: an answer does not come before its question.
func engineTime(now int64) int64 { return now }

// Receive implements wire.Link.
func (c *tappedLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	c.receiving = true
	n, err := c.CaptureLink.Receive(now, batch)
	c.receiving = false
	return n, err
}

// again reports whether a frame that is being received was recorded when it was sent.
// alone says that only this cable is recorded.
func (c *tappedLink) recordedAtSender(frame []byte, alone bool) bool {
	if c.fabric {
		return !alone || c.local(source(frame))
	}
	return c.local(source(frame))
}

// source returns whom an Ethernet frame is from.
func source(frame []byte) (s wire.Station) {
	var f packet.Frame
	packet.ParseFrame(frame, &f) // what is wrong further on does not matter here
	if s.Addr = f.Src; f.Tagged {
		s.VLAN = f.TCI & 0xfff
	}
	return s
}

// A strand is a recording's hold on one cable: the sink that the cable's capture writes to.
type tapSink struct {
	*recording
	link   *tappedLink
	single bool
	offset int64 // from the engines' time to wall time
}

// WriteFrame implements wire.FrameSink. It runs on the cable's engine.
func (s *tapSink) WriteFrame(now int64, iface int, frame []byte) error {
	if !s.link.receiving || !s.link.recordedAtSender(frame, s.single) {
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
	var from []*tappedLink
	var names []string
	for _, c := range t.links {
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
		r.taps = append(r.taps, c.Attach(&tapSink{r, c, device != "", offset}, i))
	}
	return r, nil
}
