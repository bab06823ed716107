package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/capture"
	"softroce/internal/control"
	"softroce/wire"
)

// A recording is a running capture. Engines append frames to a bounded buffer and never touch the
// file. A goroutine swaps the full buffer for an empty one and writes it to the file.
type recording struct {
	names []string // of the interfaces
	taps  []*wire.Tap

	mu sync.Mutex
	output
	wake     sync.Cond // wakes the writer for new frames, and engines when there is room
	pending  batch
	spare    batch
	notes    notes
	counts   []capture.Interface // of each interface
	state    control.CaptureState
	err      error
	stopping bool
	progress atomic.Uint64 // frames and notes written
	done     chan struct{} // closed when nothing is written any more
}

// An output says where a recording goes.
type output struct {
	file     *os.File   // nil before a FIFO has a reader
	path     string     // of the FIFO
	selected *selection // if not all frames are written: has the files instead
	blocking bool       // engines wait for room in the buffer instead of losing frames
}

func (o *output) isOpen() bool { return o.file != nil || o.selected != nil && o.selected.file != nil }

// open opens the file. It returns ENXIO for a FIFO without a reader.
func (o *output) open() (err error) {
	switch {
	case o.selected != nil:
		return o.selected.begin()
	case o.path == "-":
		o.file = os.Stdout
	default:
		o.file, _, err = openOutput(o.path)
	}
	return err
}

// batch is a list of frames whose bytes are stored contiguously.
type batch struct {
	headers []frameHeader
	data    []byte
}

type frameHeader struct {
	wallNs int64
	iface  int
	n      int
	mark   uint64
}

const (
	// maxPending bounds the bytes of frames that wait to be written: half a second of a 1 Gb/s
	// link, and an amount of memory that a daemon can spare.
	maxPending = 64 << 20

	// stopTimeout is how long Stop waits for a file to take anything, such as for the reader of a
	// pipe.
	stopTimeout = 2 * time.Second

	// stopLimit is how long Stop waits for a file that takes what is pending too slowly.
	stopLimit = 10 * stopTimeout

	// readerInterval is the time between two attempts to open a FIFO that has no reader.
	readerInterval = 50 * time.Millisecond
)

func newRecording(o output, names []string) *recording {
	r := &recording{output: o, names: names, done: make(chan struct{})}
	for _, n := range names {
		r.counts = append(r.counts, capture.Interface{Name: n, LinkType: capture.Ethernet})
	}
	if r.selected != nil {
		r.selected.source = r.interfaces
	}
	r.wake.L = &r.mu
	return r
}

// write appends a copy of a frame. It runs on the engines.
func (r *recording) write(wallNs int64, iface int, frame []byte, mark uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping { // the frame is not lost: the capture has ended
		return
	}
	for r.blocking && len(r.pending.data)+len(frame) > maxPending && r.err == nil && !r.stopping {
		r.wake.Wait()
	}
	r.counts[iface].Seen++
	if len(r.pending.data)+len(frame) > maxPending || r.err != nil || r.stopping {
		r.counts[iface].Lost++
		r.state.Dropped++
		return
	}
	if len(r.pending.headers) == 0 {
		r.wake.Broadcast()
	}
	r.pending.headers = append(r.pending.headers, frameHeader{wallNs, iface, len(frame), mark})
	r.pending.data = append(r.pending.data, frame...)
	r.state.Packets++
	r.state.Bytes += uint64(len(frame))
}

// drain writes batches until the recording is stopped and all frames are written, or until a write
// fails.
func (r *recording) drain() {
	defer close(r.done)
	err := r.open()
	switch {
	case err != nil:
	case r.selected != nil:
		err = errors.Join(r.writeSelected(), r.selected.end())
	default:
		err = errors.Join(r.writeAll(), r.file.Close())
	}
	if err == nil {
		return
	}
	r.mu.Lock()
	r.err = cannotWrite(err)
	r.wake.Broadcast()
	r.mu.Unlock()
	r.detach()
}

// open waits until the FIFO has a reader.
func (r *recording) open() error {
	for !r.isOpen() {
		r.mu.Lock()
		o, stopping := r.output, r.stopping
		r.mu.Unlock()
		if stopping {
			return fmt.Errorf("no process has opened the FIFO for reading: %w", unix.ENXIO)
		}
		switch err := o.open(); {
		case err == nil:
			r.mu.Lock()
			r.file = o.file
			r.mu.Unlock()
		case !errors.Is(err, unix.ENXIO):
			return err
		default:
			time.Sleep(readerInterval)
		}
	}
	return nil
}

// interfaces returns the interfaces with what they have seen and lost so far.
func (r *recording) interfaces() []capture.Interface {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.counts)
}

func (r *recording) writeAll() error {
	out, err := capture.NewWriter(r.file, r.names...)
	if err != nil {
		return err
	}
	if err := out.Flush(); err != nil { // a concurrent reader sees a valid capture from the start
		return err
	}
	lost := uint64(0)
	for more := true; more; {
		var b batch
		b, more = r.take()
		err := r.each(b, more, func(rec capture.Record) error { return out.WriteRecord(rec.Interface, rec) }, out.WriteNote)
		if err = cmp.Or(err, out.Flush()); err != nil {
			return err
		}
		// A reader that follows the capture learns of the loss, too.
		if s, _ := r.State(); more && s.Dropped > lost {
			lost = s.Dropped
			if err := writeStatistics(out, r.interfaces()); err != nil {
				return err
			}
		}
	}
	if err := writeStatistics(out, r.interfaces()); err != nil {
		return err
	}
	return out.Close()
}

// writeSelected writes until the recording is stopped, or the selection has all the frames that it
// wants.
func (r *recording) writeSelected() error {
	if err := r.selected.writeHeader(); err != nil {
		return err
	}
	full := false
	for more := true; more && !full; {
		var b batch
		b, more = r.take()
		err := r.each(b, more, func(rec capture.Record) (err error) {
			if full, err = r.selected.add(rec); full {
				err = cmp.Or(err, errFull)
			}
			return err
		}, r.selected.note)
		if err != nil && err != errFull {
			return err
		}
		if err := r.selected.flush(); err != nil {
			return err
		}
	}
	if full {
		r.end()
	}
	return nil
}

// end lets no more frames in.
func (r *recording) end() {
	r.mu.Lock()
	r.stopping = true
	r.wake.Broadcast() // unblocks engines that wait for room
	r.mu.Unlock()
	r.detach()
}

// take waits for frames or notes and swaps the buffers. more is false for the last batch.
func (r *recording) take() (b batch, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending.headers) == 0 && r.notes.empty() && !r.stopping {
		r.wake.Wait()
	}
	b = r.pending
	r.pending = batch{r.spare.headers[:0], r.spare.data[:0]}
	r.spare = b
	r.wake.Broadcast()
	return b, !r.stopping
}

// release lets engines lose frames from now on, so that none waits for the file.
func (r *recording) release() {
	r.mu.Lock()
	r.blocking = false
	r.wake.Broadcast()
	r.mu.Unlock()
}

func (r *recording) detach() {
	for _, t := range r.taps {
		t.Detach()
	}
}

// State implements attach.Capture. It returns the error that ended the recording, if a write
// failed.
func (r *recording) State() (control.CaptureState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	if r.selected != nil {
		s = r.selected.written()
		s.Dropped = r.state.Dropped
	}
	return s, r.err
}

// recorded returns what the recording has written, and, if it has ended, to which files.
func (r *recording) recorded() (done Recorded) {
	done.CaptureState, _ = r.State()
	select {
	case <-r.done:
		if r.selected != nil {
			done.Files = r.selected.files
		}
	default:
	}
	return done
}

// Stop implements attach.Capture. It writes out the pending frames and closes the file. It gives up
// if the file takes nothing for stopTimeout, as a pipe that is not read, or not all in stopLimit.
func (r *recording) Stop() error {
	r.end()
	for progress, end := r.progress.Load(), time.Now().Add(stopLimit); ; progress = r.progress.Load() {
		select {
		case <-r.done:
			_, err := r.State()
			return err
		case <-time.After(stopTimeout):
		}
		if r.progress.Load() == progress || time.Now().After(end) {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Closing the file ends the write, unless another process made it a blocking one.
	if r.file != nil {
		r.file.Close()
	}
	if r.selected != nil {
		r.selected.abort()
	}
	return errNotRead
}

var errNotRead = errors.New("capture: the reader of the file does not accept the remaining data")

// cannotWrite adds a description to an error of the file and keeps its errno.
func cannotWrite(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return &attach.Error{Errno: no, Text: "the capture cannot be written"}
	}
	return err
}
