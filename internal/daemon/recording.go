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

// A recording is one capture that runs. Engines put frames in a buffer; a goroutine takes
// the whole buffer, gives an empty one back, and writes to the file.
type recording struct {
	lossless bool // engines wait instead of losing frames
	file  *os.File
	out   *capture.Writer
	taps  []*wire.Tap // where frames come from

	mu     sync.Mutex
	wake   sync.Cond // of the writer: something is there; of engines: there is room
	pending   batch
	spare  batch
	state  control.CaptureState
	err    error
	stopping bool
	done  chan struct{}
}

// batch is frames behind each other.
type batch struct {
	headers []frameHeader
	data  []byte
}

type frameHeader struct {
	wallNs int64
	iface  int
	n      int
}

const (
	// maxWaiting is how many bytes of frames wait for the file at most: a quarter of a second
	// of 1 Gb/s links, and memory that a daemon can spare.
	maxPending = 64 << 20

	// stopTime is how long the end of a recording waits for whoever reads a pipe.
	stopTimeout = 2 * time.Second
)

func newRecording(w *os.File, names []string, whole bool) (*recording, error) {
	out, err := capture.NewWriter(w, names...)
	if err == nil {
		err = out.Flush() // whoever reads along sees a capture from the start
	}
	if err != nil {
		return nil, cannotWrite(err)
	}
	r := &recording{lossless: whole, file: w, out: out, done: make(chan struct{})}
	r.wake.L = &r.mu
	go r.drain()
	return r, nil
}

// write takes a copy of a frame. It runs on the engines.
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

// drain writes batches until the recording ends and nothing is left.
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

// take waits for frames and swaps the buffers. more is false with the last ones.
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

// State implements attach.Capture. The error is that of a file that takes no more.
func (r *recording) State() (control.CaptureState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.err
}

// Stop implements attach.Capture: it writes out what is there and closes the file. A pipe that
// nobody reads holds it up for stopTime only.
func (r *recording) Stop() error {
	r.mu.Lock()
	r.stopping = true
	r.wake.Broadcast() // engines that wait for room let go of their taps
	r.mu.Unlock()
	for _, t := range r.taps {
		t.Detach()
	}
	select {
	case <-r.done:
	case <-time.After(stopTimeout):
		r.file.Close()
		return errors.New("capture: what reads it does not take the rest")
	}
	err := errors.Join(r.out.Close(), r.file.Close())
	if r.err != nil {
		return r.err // what came of it is no news
	}
	return cannotWrite(err)
}

// cannotWrite says what an error of the file means, and keeps its errno.
func cannotWrite(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return &attach.Error{Errno: no, Text: "the capture cannot be written"}
	}
	return err
}
