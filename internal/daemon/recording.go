package daemon

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"softroce/attach"
	"softroce/capture"
	"softroce/internal/control"
	"softroce/wire"
)

// A recording is a running capture. Engines append frames to a buffer. A goroutine swaps the full
// buffer for an empty one and writes it to the file.
type recording struct {
	lossless bool // engines block instead of losing frames
	file     *os.File
	out      *capture.Writer
	taps     []*wire.Tap // the sources of the frames

	mu       sync.Mutex
	wake     sync.Cond // wakes the writer for new frames, and engines when there is room
	pending  batch
	spare    batch
	state    control.CaptureState
	err      error
	stopping bool
	done     chan struct{}
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
}

const (
	// maxPending bounds the bytes of frames that wait to be written: half a second of a 1 Gb/s
	// link, and an amount of memory that a daemon can spare.
	maxPending = 64 << 20

	// stopTimeout is how long Stop waits for the reader of a pipe.
	stopTimeout = 2 * time.Second
)

func newRecording(w *os.File, names []string, whole bool) (*recording, error) {
	out, err := capture.NewWriter(w, names...)
	if err == nil {
		err = out.Flush() // a concurrent reader sees a valid capture from the start
	}
	if err != nil {
		return nil, cannotWrite(err)
	}
	r := &recording{lossless: whole, file: w, out: out, done: make(chan struct{})}
	r.wake.L = &r.mu
	go r.drain()
	return r, nil
}

// write appends a copy of a frame. It runs on the engines.
func (r *recording) write(wallNs int64, iface int, frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.lossless && len(r.pending.data)+len(frame) > maxPending && r.err == nil && !r.stopping {
		r.wake.Wait()
	}
	if len(r.pending.data)+len(frame) > maxPending || r.err != nil || r.stopping {
		r.state.Dropped++
		return
	}
	if len(r.pending.headers) == 0 {
		r.wake.Broadcast()
	}
	r.pending.headers = append(r.pending.headers, frameHeader{wallNs, iface, len(frame)})
	r.pending.data = append(r.pending.data, frame...)
	r.state.Packets++
	r.state.Bytes += uint64(len(frame))
}

// drain writes batches until the recording is stopped and all frames are written.
func (r *recording) drain() {
	defer close(r.done)
	for {
		b, more := r.take()
		if err := r.writeBatch(b); err != nil {
			r.fail(err)
			return
		}
		if !more {
			return
		}
	}
}

// take waits for frames and swaps the buffers. more is false for the last batch.
func (r *recording) take() (b batch, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending.headers) == 0 && !r.stopping {
		r.wake.Wait()
	}
	b = r.pending
	r.pending = batch{r.spare.headers[:0], r.spare.data[:0]}
	r.spare = b
	r.wake.Broadcast()
	return b, !r.stopping
}

func (r *recording) writeBatch(b batch) error {
	for _, h := range b.headers {
		if err := r.out.WriteFrame(h.wallNs, h.iface, b.data[:h.n]); err != nil {
			return err
		}
		b.data = b.data[h.n:]
	}
	return r.out.Flush()
}

func (r *recording) fail(err error) {
	r.mu.Lock()
	r.err = cannotWrite(err)
	r.wake.Broadcast()
	r.mu.Unlock()
}

// State implements attach.Capture. It returns the error that ended the recording, if a write
// failed.
func (r *recording) State() (control.CaptureState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.err
}

// Stop implements attach.Capture. It writes out the pending frames and closes the file. If the file
// is a pipe that is not read, Stop gives up after stopTimeout.
func (r *recording) Stop() error {
	r.mu.Lock()
	r.stopping = true
	r.wake.Broadcast() // unblocks engines that wait for room
	r.mu.Unlock()
	for _, t := range r.taps {
		t.Detach()
	}
	select {
	case <-r.done:
	case <-time.After(stopTimeout):
		r.file.Close()
		return errors.New("capture: the reader of the file does not accept the remaining data")
	}
	err := errors.Join(r.out.Close(), r.file.Close())
	if r.err != nil {
		return r.err // errors after the first are its consequences
	}
	return cannotWrite(err)
}

// cannotWrite adds a description to an error of the file and keeps its errno.
func cannotWrite(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return &attach.Error{Errno: no, Text: "the capture cannot be written"}
	}
	return err
}
