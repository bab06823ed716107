package daemon

import (
	"os"
	"slices"
	"syscall"
	"time"

	"softroce/attach"
	"softroce/packet"
	"softroce/wire"
	"softroce/wire/fault"
)

// tap connects captures to the links of all NICs. While no capture runs it costs one atomic load
// per batch.
type tap struct {
	clock func() int64  // the engines' clock
	links []*tappedLink // in the order of the NICs, and of their slices
}

// A tappedLink is a NIC's link wrapped in a capture. It recognizes frames that this daemon both
// sends and receives: they are recorded when sent and not again when received.
type tappedLink struct {
	*wire.CaptureLink
	name      string
	fabric    bool // both ends of the link belong to this daemon
	local     func(wire.Station) bool
	receiving bool // the engine is in Receive
}

// marksOfLink is the bits of the number of a frame of one link.
const marksOfLink = 48

// add wraps a link in a capture.
func (t *tap) add(name string, link wire.Link, iface wire.Interface, fabric bool) *tappedLink {
	o := wire.CaptureOptions{MAC: iface.MAC, Clock: t.clock, Wall: engineTime, FirstMark: uint64(len(t.links)) << marksOfLink}
	if n, ok := iface.(*wire.Netdev); ok {
		o.Neighbor = n.Neighbor
	}
	c := &tappedLink{CaptureLink: wire.NewCaptureLink(link, nil, o), name: name, fabric: fabric, local: wire.Owns(iface)}
	t.links = append(t.links, c)
	return c
}

// engineTime leaves the timestamp of a frame in engine time. A recording converts it to wall time
// with one offset for all links, so that the order of frames of different links is preserved.
func engineTime(now int64) int64 { return now }

// Receive implements wire.Link.
func (c *tappedLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	c.receiving = true
	n, err := c.CaptureLink.Receive(now, batch)
	c.receiving = false
	return n, err
}

// ReceiveRuns implements wire.RunCarrier.
func (c *tappedLink) ReceiveRuns(now int64, batch []wire.RxFrame) (int, error) {
	c.receiving = true
	n, err := c.CaptureLink.ReceiveRuns(now, batch)
	c.receiving = false
	return n, err
}

// recordedAtSender reports whether a received frame was already recorded when it was sent. alone
// means that only this link is recorded. Pause frames come from switches, which are not.
func (c *tappedLink) recordedAtSender(frame []byte, alone bool) bool {
	if c.fabric && !alone {
		_, pause := packet.ParsePause(frame)
		return !pause
	}
	return c.local(source(frame))
}

// source returns the sender of an Ethernet frame.
func source(frame []byte) (s wire.Station) {
	var f packet.Frame
	packet.ParseFrame(frame, &f) // errors beyond the addresses do not matter here
	if s.Addr = f.Src; f.Tagged {
		s.VLAN = f.TCI & 0xfff
	}
	return s
}

// A tapSink feeds the frames of one link to a recording.
type tapSink struct {
	*recording
	link   *tappedLink
	single bool
	offset int64 // from engine time to wall time
}

// WriteFrame implements wire.FrameSink. It runs on the link's engine.
func (s *tapSink) WriteFrame(now int64, iface int, frame []byte) error {
	return s.WriteMarked(now, iface, frame, 0)
}

// WriteMarked implements wire.NoteSink.
func (s *tapSink) WriteMarked(now int64, iface int, frame []byte, mark uint64) error {
	if !s.link.receiving || !s.link.recordedAtSender(frame, s.single) {
		s.write(now+s.offset, iface, frame, mark)
	}
	return nil
}

// WriteNote implements wire.NoteSink.
func (s *tapSink) WriteNote(now int64, iface int, mark uint64, n *fault.Note) error {
	s.note(now+s.offset, iface, mark, n)
	return nil
}

// StartCapture implements attach.Capturer. If the client reads too slowly, frames are dropped and
// counted in CaptureState.Dropped.
func (t *tap) StartCapture(w *os.File, device string) (attach.Capture, error) {
	r, err := t.start(output{file: w}, device)
	if err != nil {
		w.Close()
		return nil, err
	}
	return r, nil
}

// start begins a recording of the links of a NIC, or of all NICs if device is empty.
func (t *tap) start(o output, device string) (*recording, error) {
	var from []*tappedLink
	var names []string
	for _, c := range t.links {
		if device != "" && device != c.name {
			continue
		}
		from = append(from, c)
		if n := len(names); n == 0 || names[n-1] != c.name { // the links of slices follow each other
			names = append(names, c.name)
		}
	}
	if len(from) == 0 {
		return nil, syscall.ENODEV
	}
	r := newRecording(o, names)
	offset := time.Now().UnixNano() - t.clock()
	for _, c := range from {
		r.taps = append(r.taps, c.Attach(&tapSink{r, c, device != "", offset}, slices.Index(names, c.name)))
	}
	go r.drain()
	return r, nil
}
