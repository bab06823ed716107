package wire

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"softroce/packet"
	"softroce/wire/fault"
)

// A FrameSink receives frames as they are on the wire, from Ethernet header to ICRC, with the time
// in nanoseconds since 1970 and the number of the interface. It must not keep frame. The
// CaptureLinks of NICs on several engines call a shared sink concurrently.
type FrameSink interface {
	WriteFrame(wallNs int64, iface int, frame []byte) error
}

// A NoteSink is a FrameSink that also records what fault rules did. Each frame has a mark, which is
// unique among the links of a daemon. A note may come before the frame that it is about, or a while
// after it: a receive rule acts on a packet of a fabric that was recorded when it was sent.
type NoteSink interface {
	FrameSink
	WriteMarked(wallNs int64, iface int, frame []byte, mark uint64) error // WriteFrame with a mark

	// WriteNote records a note about the frame with a mark. If the capture has no such frame, the
	// note is recorded by itself; its Packet describes the frame. The sink may keep the note.
	WriteNote(wallNs int64, iface int, mark uint64, n *fault.Note) error
}

// A Noter is middleware that passes notes on to captures. Its methods are for the goroutine of the
// link.
type Noter interface {
	// Noting reports whether a capture that takes notes runs.
	Noting() bool

	// NewMark returns a mark for a frame that is to be sent.
	NewMark() uint64

	// Note gives a note about the frame with a mark, or about none if it is 0, to the captures. It
	// owns n.
	Note(now int64, mark uint64, n *fault.Note)
}

// noNoter is the Noter of links without captures.
type noNoter struct{}

func (noNoter) Noting() bool                    { return false }
func (noNoter) NewMark() uint64                 { return 0 }
func (noNoter) Note(int64, uint64, *fault.Note) {}

// NoterOf returns the Noter of a link, which may be one that does nothing.
func NoterOf(l Link) Noter {
	if n, ok := l.(Noter); ok {
		return n
	}
	return noNoter{}
}

// CaptureLink is middleware that writes the packets that pass it, and the pause frames at its port,
// to sinks, which can be attached and detached at any time. It wraps the link directly, so that it
// writes frames as the link sent them, with their Identification and ICRC, and in the order on the
// wire. Frames of a link without ICRC are written with the ICRC that they would have. Without a
// sink it costs an atomic load per batch.
type CaptureLink struct {
	inner Link
	o     CaptureOptions
	icrc  bool   // the link computes ICRCs
	port  uint16 // the source port of all frames that the link sends; 0: the Path's
	taps  atomic.Pointer[[]*Tap]
	mu    sync.Mutex // held while taps is replaced
	frame []byte
	last  int64  // the link's time of the last frame
	marks uint64 // the last mark

	divider runDivider

	pauses pauseRecorder // the link; nil: no pause frames arrive at it
}

// A pauseRecorder is a link that records the pause frames at its port, which it does not return as
// frames.
type pauseRecorder interface {
	// recordPauses begins or ends the recording. It may be called from any goroutine.
	recordPauses(on bool)

	hasPauses() bool

	// takePauses returns those recorded since the last call. They are valid until the next one.
	takePauses() []recordedPause
}

// CaptureOptions are properties of frames that a link does not have.
type CaptureOptions struct {
	MAC func() [6]byte // of the NIC; nil means zeros

	// Neighbor returns the MAC of a station whose frames the link receives without their Ethernet
	// headers; zeros if it is not known. It may be nil.
	Neighbor func(Station) [6]byte

	// Clock reads the link's time. It is read before and after a call of the link, and the packets
	// of the call are spread over the time between, by their lengths; no two have the same time. A
	// link that does not serialize frames passes them on at one moment: they are a nanosecond
	// apart. If Clock is nil all frames have the time of the call, as in a simulation.
	Clock func() int64

	// Wall converts the link's time to nanoseconds since 1970. If it is nil, each Tap measures the
	// offset between the clocks once.
	Wall func(now int64) int64

	// FirstMark is the number before the marks of frames, which the links of a daemon must not
	// share.
	FirstMark uint64
}

// NewCaptureLink wraps a link. sink, if not nil, is attached as interface 0.
func NewCaptureLink(inner Link, sink FrameSink, o CaptureOptions) *CaptureLink {
	can := inner.Capabilities()
	c := &CaptureLink{inner: inner, o: o, icrc: can.ICRC, port: can.SrcPort, marks: o.FirstMark}
	c.pauses, _ = inner.(pauseRecorder)
	if sink != nil {
		c.Attach(sink, 0)
	}
	return c
}

// A Tap is a sink that is attached to a CaptureLink. Its methods may be called from any goroutine.
type Tap struct {
	capture *CaptureLink
	sink    FrameSink
	notes   NoteSink // the same sink, or nil
	iface   int
	packets atomic.Uint64
	err     atomic.Pointer[error]

	mu     sync.Mutex // held by the engine for a batch
	off    bool
	synced bool
	offset int64 // from the link's time to wall time
}

// Attach starts writing to sink, as interface iface. It may be called from any goroutine.
func (c *CaptureLink) Attach(sink FrameSink, iface int) *Tap {
	t := &Tap{capture: c, sink: sink, iface: iface}
	t.notes, _ = sink.(NoteSink)
	c.replace(func(taps []*Tap) []*Tap { return append(taps, t) })
	return t
}

// Detach stops writing. After it returns, the sink is not called.
func (t *Tap) Detach() {
	t.capture.replace(func(taps []*Tap) []*Tap {
		return slices.DeleteFunc(taps, func(u *Tap) bool { return u == t })
	})
	t.mu.Lock()
	t.off = true
	t.mu.Unlock()
}

// Packets returns the number of packets written.
func (t *Tap) Packets() uint64 { return t.packets.Load() }

// Err returns the sink's error that stopped the capture, or nil. The link keeps working after an
// error.
func (t *Tap) Err() error {
	if e := t.err.Load(); e != nil {
		return *e
	}
	return nil
}

func (c *CaptureLink) replace(f func([]*Tap) []*Tap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var taps []*Tap
	if p := c.taps.Load(); p != nil {
		taps = slices.Clone(*p)
	}
	if taps = f(taps); len(taps) == 0 {
		c.taps.Store(nil)
	} else {
		c.taps.Store(&taps)
	}
	if c.pauses != nil {
		c.pauses.recordPauses(len(taps) > 0)
	}
}

// Send implements Link.
func (c *CaptureLink) Send(now int64, batch []TxFrame) (int, error) {
	taps := c.taps.Load()
	if taps == nil {
		return c.inner.Send(now, batch)
	}
	if hasRuns(batch) {
		return c.divider.sendAll(now, batch, c.Send)
	}
	clearDropped(batch)
	for i := range batch {
		if batch[i].Mark == 0 {
			batch[i].Mark = c.NewMark()
		}
	}
	t := c.startCall(now)
	n, err := c.inner.Send(now, batch)
	looped := false // by a LoopbackLink, which leaves the ICRC 0
	for i := range batch[:n] {
		t.bytes += batch[i].Len
		looped = looped || batch[i].ICRC == 0
	}
	c.begin(*taps, now)
	c.writePauses(*taps)
	if t.end = t.start; !looped { // another engine may have answered by now
		t.end = c.endCall(t.start)
	}
	for i := range batch[:n] {
		if !batch[i].Dropped {
			c.buildTx(&batch[i])
			c.write(*taps, t.next(batch[i].Len), batch[i].Mark)
		}
	}
	c.end(*taps)
	return n, err
}

// CarriesRuns implements RunCarrier.
func (c *CaptureLink) CarriesRuns(p *Path) bool {
	return c.taps.Load() == nil && CarriesRuns(c.inner, p)
}

// ReceiveRuns implements RunCarrier. A capture has no runs.
func (c *CaptureLink) ReceiveRuns(now int64, batch []RxFrame) (int, error) {
	if c.taps.Load() == nil {
		return ReceiveRuns(c.inner, now, batch)
	}
	return c.Receive(now, batch)
}

// Receive implements Link.
func (c *CaptureLink) Receive(now int64, batch []RxFrame) (int, error) {
	taps := c.taps.Load()
	if taps == nil {
		return c.inner.Receive(now, batch)
	}
	t := c.startCall(now)
	n, err := c.inner.Receive(now, batch)
	if n == 0 && (c.pauses == nil || !c.pauses.hasPauses()) {
		return n, err
	}
	for i := range batch[:n] {
		t.bytes += batch[i].Len()
	}
	c.begin(*taps, now)
	c.writePauses(*taps)
	t.end = c.endCall(t.start)
	for i := range batch[:n] {
		if batch[i].Mark == 0 {
			batch[i].Mark = c.NewMark()
		}
		c.buildRx(&batch[i])
		c.write(*taps, t.next(batch[i].Len()), batch[i].Mark)
	}
	c.end(*taps)
	return n, err
}

// A call is a call of the link with a batch of frames.
type call struct {
	start, end  int64 // the link's time
	bytes, done int   // of all frames, and of those that have a time
}

// next returns the time at which the link began to pass the next frame, of n bytes.
func (t *call) next(n int) int64 {
	at := t.start
	if t.bytes > 0 {
		at += int64(float64(t.end-t.start) * (float64(t.done) / float64(t.bytes)))
	}
	t.done += n
	return at
}

func (c *CaptureLink) startCall(now int64) call {
	if c.o.Clock != nil {
		now = c.o.Clock()
	}
	return call{start: now}
}

// endCall returns when a call ended that began at start. Frames of a fabric may have been received
// and answered by then.
func (c *CaptureLink) endCall(start int64) int64 {
	if c.o.Clock == nil || !c.icrc {
		return start
	}
	return c.o.Clock()
}

// begin locks the taps for a batch.
func (c *CaptureLink) begin(taps []*Tap, now int64) {
	for _, t := range taps {
		t.mu.Lock()
		if !t.synced && c.o.Wall == nil {
			t.offset, t.synced = time.Now().UnixNano()-now, true
		}
	}
}

func (c *CaptureLink) end(taps []*Tap) {
	for _, t := range taps {
		t.mu.Unlock()
	}
}

// write writes the current frame, which passed the link at a time, to all taps.
func (c *CaptureLink) write(taps []*Tap, now int64, mark uint64) {
	if c.o.Clock != nil {
		now = max(now, c.last+1)
		c.last = now
	}
	for _, t := range taps {
		if t.off {
			continue
		}
		var err error
		if t.notes != nil {
			err = t.notes.WriteMarked(t.wall(now), t.iface, c.frame, mark)
		} else {
			err = t.sink.WriteFrame(t.wall(now), t.iface, c.frame)
		}
		if err != nil {
			t.fail(err)
			continue
		}
		t.packets.Add(1)
	}
}

// writePauses writes the pause frames since the last call. They precede the frames of the call of
// the link in which they arrived.
func (c *CaptureLink) writePauses(taps []*Tap) {
	if c.pauses == nil || !c.pauses.hasPauses() {
		return
	}
	for _, p := range c.pauses.takePauses() {
		c.frame = p.frame.AppendFrame(c.frame[:0])
		c.write(taps, p.at, 0)
	}
}

// wall converts the link's time.
func (t *Tap) wall(now int64) int64 {
	if w := t.capture.o.Wall; w != nil {
		return w(now)
	}
	return now + t.offset
}

// Noting implements Noter.
func (c *CaptureLink) Noting() bool {
	taps := c.taps.Load()
	return taps != nil && slices.ContainsFunc(*taps, func(t *Tap) bool { return t.notes != nil })
}

// NewMark implements Noter.
func (c *CaptureLink) NewMark() uint64 {
	c.marks++
	return c.marks
}

// Note implements Noter.
func (c *CaptureLink) Note(now int64, mark uint64, n *fault.Note) {
	taps := c.taps.Load()
	if taps == nil {
		return
	}
	if c.o.Clock != nil {
		now = c.o.Clock()
	}
	c.begin(*taps, now)
	for _, t := range *taps {
		if t.off || t.notes == nil {
			continue
		}
		if err := t.notes.WriteNote(t.wall(now), t.iface, mark, n); err != nil {
			t.fail(err)
		}
	}
	c.end(*taps)
}

// fail is not part of write, where err would escape to the heap for each packet.
func (t *Tap) fail(err error) {
	t.off = true
	t.err.Store(&err)
}

func (c *CaptureLink) mac() (m [6]byte) {
	if c.o.MAC != nil {
		m = c.o.MAC()
	}
	return m
}

// buildTx makes the current frame the bytes of f on the wire.
func (c *CaptureLink) buildTx(f *TxFrame) {
	a := f.Path.addressing(f.CE)
	a.SrcMAC, a.ID = c.mac(), f.ID
	if c.port != 0 {
		a.SrcPort = c.port
	}
	start := c.headers(&a, f.Len)
	c.frame = append(c.frame, f.Head[:f.HeadLen]...)
	for _, s := range f.Payload {
		c.frame = append(c.frame, s...)
	}
	c.frame = append(c.frame, zeros[:f.Pad]...)
	icrc := f.ICRC
	if !c.icrc || icrc == 0 { // a LoopbackLink leaves 0
		icrc = packet.ICRCBytes(&a, c.frame[start:])
	}
	c.frame = binary.LittleEndian.AppendUint32(c.frame, icrc)
	if bit := int(f.Flip) - 1; bit >= 0 && bit < 8*(len(c.frame)-start) {
		c.frame[start+bit/8] ^= 0x80 >> (bit % 8)
	}
}

// buildRx makes the current frame the bytes of f on the wire.
func (c *CaptureLink) buildRx(f *RxFrame) {
	a := packet.Addressing{
		Network: f.Network, SrcMAC: f.SrcMAC, DstMAC: c.mac(), Tagged: f.Tagged, TCI: f.TCI, Src: f.Src, Dst: f.Dst, SrcPort: f.SrcPort,
		TClass: f.TClass, HopLimit: f.HopLimit, FlowLabel: f.FlowLabel, ID: f.ID, MayFragment: f.MayFragment,
	}
	if f.Dst.IsMulticast() {
		a.DstMAC = multicastMAC(f.Dst)
	}
	if a.SrcMAC == [6]byte{} && c.o.Neighbor != nil {
		a.SrcMAC = c.o.Neighbor(Station{f.Src, f.VLAN()})
	}
	start := c.headers(&a, f.Len())
	c.frame = append(c.frame, f.Head...)
	for _, t := range f.Tail {
		c.frame = append(c.frame, t...)
	}
	icrc := f.ICRC
	if !c.icrc || icrc == 0 {
		icrc = packet.ICRCBytes(&a, c.frame[start:])
		if f.BadICRC {
			icrc = ^icrc
		}
	}
	c.frame = binary.LittleEndian.AppendUint32(c.frame, icrc)
}

// headers starts the current frame with the headers of a packet of n bytes from BTH to pad. It
// returns the offset of the BTH.
func (c *CaptureLink) headers(a *packet.Addressing, n int) int {
	var h [packet.MaxFrameHeaderLen]byte
	l := a.PutHeaders(h[:], n+packet.ICRCLen)
	c.frame = append(c.frame[:0], h[:l]...)
	return l
}

// CopyPayload implements Link.
func (c *CaptureLink) CopyPayload() { c.inner.CopyPayload() }

// AppendFDs implements Link.
func (c *CaptureLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return c.inner.AppendFDs(fds) }

// OnReady implements Link.
func (c *CaptureLink) OnReady(f func()) { c.inner.OnReady(f) }

// NextDeadline implements Link.
func (c *CaptureLink) NextDeadline() int64 { return c.inner.NextDeadline() }

// HoldsReferences implements Referrer.
func (c *CaptureLink) HoldsReferences() bool { return HoldsReferences(c.inner) }

// Paused implements Pauser.
func (c *CaptureLink) Paused() uint8 { return Paused(c.inner) }

// Capabilities implements Link.
func (c *CaptureLink) Capabilities() Capabilities { return c.inner.Capabilities() }

// Counters implements Counted.
func (c *CaptureLink) Counters() *LinkCounters { return linkCounters(c.inner) }

// Close closes the link. Sinks are not closed.
func (c *CaptureLink) Close() error { return c.inner.Close() }
