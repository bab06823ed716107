package capture

import (
	"cmp"
	"errors"
	"slices"
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
	notes   []Note
	marked  map[uint64]int // index in packets by mark
}

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder { return new(Recorder) }

// WriteFrame adds a copy of a frame that was captured at wallNs nanoseconds of the Unix epoch. It
// never fails. Frames of other protocols are numbered, but not kept.
func (r *Recorder) WriteFrame(wallNs int64, iface int, frame []byte) error {
	return r.WriteMarked(wallNs, iface, frame, 0)
}

// WriteMarked is WriteFrame for a frame that AddNote may name by its mark, if that is not 0.
func (r *Recorder) WriteMarked(wallNs int64, iface int, frame []byte, mark uint64) error {
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
		if mark != 0 {
			if r.marked == nil {
				r.marked = map[uint64]int{}
			}
			r.marked[mark] = len(r.packets) - 1
		}
	case !errors.Is(err, packet.ErrNotRoCE):
		r.bad = append(r.bad, rec)
	}
	return nil
}

// AddNote adds a comment to the frame with a mark, or a note if there is none. comment is what the
// note says without the description of the frame.
func (r *Recorder) AddNote(mark uint64, comment string, n Note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, known := r.marked[mark]
	if !known {
		r.notes = append(r.notes, n)
		return
	}
	p := *r.packets[i] // callers may read the old one
	p.Comments = append(slices.Clip(p.Comments), comment)
	r.packets[i] = &p
}

// Packets returns the packets so far, with their comments so far.
func (r *Recorder) Packets() Packets {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(Packets(nil), r.packets...)
}

// Notes returns the notes so far: what fault rules did where there is no packet, such as a verb
// that failed or a packet that was dropped before it was sent.
func (r *Recorder) Notes() []Note {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.notes)
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
	r.packets, r.frames, r.bad, r.notes, r.marked = nil, 0, nil, nil, nil
}

// Save writes the packets and the notes so far to a pcapng file.
func (r *Recorder) Save(file string) error {
	ps, notes := r.Packets(), r.Notes()
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
		for len(notes) > 0 && err == nil && notes[0].Time.Before(p.Time) {
			err, notes = w.WriteNote(notes[0]), notes[1:]
		}
		if err = cmp.Or(err, w.WriteRecord(p.Interface, p.Record)); err != nil {
			return errors.Join(err, w.Close())
		}
	}
	for _, n := range notes {
		err = cmp.Or(err, w.WriteNote(n))
	}
	return errors.Join(err, w.Close())
}
