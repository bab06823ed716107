package daemon

import (
	"errors"
	"fmt"
	"time"

	"softroce/capture"
	"softroce/wire/fault"
)

// notes are those of a recording that are not written yet.
type notes struct {
	list []note
	lost int // since the last ones were written
}

// A note is one about the frame with a mark, or about none if that is 0.
type note struct {
	*fault.Note
	wallNs int64
	mark   uint64
	waited bool // for a frame with its mark, without success
}

const (
	// noteDelay is how long a batch of frames waits for notes about them. A receive rule acts on
	// a frame that is recorded already, on a fabric perhaps by another engine.
	noteDelay = 10 * time.Millisecond

	// maxNotes bounds the notes that wait to be written.
	maxNotes = 1 << 16
)

func (n *notes) empty() bool { return len(n.list) == 0 && n.lost == 0 }

// note adds a note. It runs on the engines.
func (r *recording) note(wallNs int64, iface int, mark uint64, n *fault.Note) {
	own := *n // other recordings have it too
	own.NIC = r.names[iface]
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return
	}
	if r.notes.empty() {
		r.wake.Broadcast()
	}
	if len(r.notes.list) == maxNotes {
		r.notes.lost++
		return
	}
	r.notes.list = append(r.notes.list, note{Note: &own, wallNs: wallNs, mark: mark})
}

// awaitNotes waits for noteDelay, or until frames fill half of the buffer, so that none is lost.
func (r *recording) awaitNotes() {
	const step = noteDelay / 10
	for end := time.Now().Add(noteDelay); time.Now().Before(end); time.Sleep(step) {
		r.mu.Lock()
		n := len(r.pending.data)
		r.mu.Unlock()
		if n > maxPending/2 {
			return
		}
	}
}

// takeNotes removes the notes and returns them.
func (r *recording) takeNotes() notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.notes
	r.notes = notes{}
	return n
}

// errFull ends each.
var errFull = errors.New("the capture has all frames that it wants")

// each calls frame for each frame of a batch, with its comments, and writeNote for each note whose
// frame the capture lacks, in the order of time. Unless the batch is the last one, it keeps notes
// whose frame may be in the next batch.
func (r *recording) each(b batch, more bool, frame func(capture.Record) error, writeNote func(capture.Note) error) error {
	r.awaitNotes()
	taken := r.takeNotes()
	comments := map[uint64][]string{}
	for _, n := range taken.list {
		if n.mark != 0 {
			comments[n.mark] = nil
		}
	}
	if len(comments) > 0 {
		r.match(b, taken.list, comments)
	}
	var alone, kept []note
	for _, n := range taken.list {
		switch {
		case n.mark != 0 && comments[n.mark] != nil:
		case n.mark == 0 || n.waited || !more:
			alone = append(alone, n)
		default:
			n.waited = true
			kept = append(kept, n)
		}
	}
	r.keep(kept)
	text := func(n capture.Note) error {
		r.progress.Add(1)
		return writeNote(n)
	}
	for _, h := range b.headers {
		for len(alone) > 0 && alone[0].wallNs < h.wallNs {
			if err := text(alone[0].record()); err != nil {
				return err
			}
			alone = alone[1:]
		}
		rec := capture.Record{
			Time: time.Unix(0, h.wallNs), Interface: h.iface, NIC: r.names[h.iface], LinkType: capture.Ethernet,
			Length: h.n, Data: b.data[:h.n], Comments: comments[h.mark],
		}
		b.data = b.data[h.n:]
		r.progress.Add(1)
		if err := frame(rec); err != nil {
			return err
		}
	}
	for _, n := range alone {
		if err := text(n.record()); err != nil {
			return err
		}
	}
	if taken.lost > 0 {
		return text(capture.Note{Time: time.Now(), Text: fmt.Sprintf("the capture lost %d notes", taken.lost)})
	}
	return nil
}

// match adds the comments of the frames of a batch to the marks of notes.
func (r *recording) match(b batch, list []note, comments map[uint64][]string) {
	has := map[uint64]bool{}
	for _, h := range b.headers {
		if _, noted := comments[h.mark]; noted {
			has[h.mark] = true
		}
	}
	for _, n := range list {
		if has[n.mark] {
			comments[n.mark] = append(comments[n.mark], n.Comment())
		}
	}
}

// keep puts notes back before those that have come since.
func (r *recording) keep(list []note) {
	if len(list) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes.list = append(list, r.notes.list...)
}

// record returns the note as the capture has it.
func (n *note) record() capture.Note {
	return capture.Note{
		Time: time.Unix(0, n.wallNs), Text: n.String(), NIC: n.NIC, Rule: n.Rule, PID: n.PID, Program: n.Comm, QP: n.QPN,
	}
}
