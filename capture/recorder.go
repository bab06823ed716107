package capture

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"softroce/packet"
)

// A Recorder keeps the packets of a link in memory. Like a Writer, it is a sink of a capturing
// link, and may be used by several goroutines.
type Recorder struct {
	mu      sync.Mutex
	packets Packets
	frames  int
	bad     []Record // RoCEv2 frames without a readable BTH
}

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder { return new(Recorder) }

// WriteFrame adds a copy of a frame that was captured at wallNs nanoseconds of the Unix epoch. It
// never fails. Frames of other protocols are numbered, but not kept.
func (r *Recorder) WriteFrame(wallNs int64, iface int, frame []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames++
	rec := Record{
		No: r.frames, Time: time.Unix(0, wallNs).UTC(), Interface: iface, LinkType: Ethernet,
		Length: len(frame), Data: append([]byte(nil), frame...),
	}
	p, err := Parse(rec)
	switch {
	case err == nil:
		r.packets = append(r.packets, p)
	case !errors.Is(err, packet.ErrNotRoCE):
		r.bad = append(r.bad, rec)
	}
	return nil
}

// Packets returns the packets so far.
func (r *Recorder) Packets() Packets {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(Packets(nil), r.packets...)
}

// Where returns the packets so far that every match accepts.
func (r *Recorder) Where(matches ...Match) Packets { return r.Packets().Where(matches...) }

// Find returns the first packet that every match accepts, or nil.
func (r *Recorder) Find(matches ...Match) *Packet { return r.Packets().Find(matches...) }

// Malformed returns the frames to RoCEv2's UDP port that are not valid packets.
func (r *Recorder) Malformed() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Record(nil), r.bad...)
}

// Reset removes everything recorded so far.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets, r.frames, r.bad = nil, 0, nil
}

// Save writes the packets so far to a pcapng file.
func (r *Recorder) Save(file string) error {
	ps := r.Packets()
	names := []string{"0"}
	for _, p := range ps {
		for p.Interface >= len(names) {
			names = append(names, strconv.Itoa(len(names)))
		}
	}
	w, err := Create(file, names...)
	if err != nil {
		return err
	}
	for _, p := range ps {
		if err := w.WriteFrame(p.Time.UnixNano(), p.Interface, p.Data); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	return w.Close()
}
