package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
	"softroce/internal/control"
)

// A Recorded is what a capture has written.
type Recorded struct {
	control.CaptureState
	Files []string // those that are kept; none for standard output
}

// String says what was recorded, and the files if a capture has several.
func (r Recorded) String() string {
	text := Summary(r.CaptureState)
	if n := len(r.Files); n > 1 {
		text += fmt.Sprintf("; %d files, %s to %s", n, r.Files[0], r.Files[n-1])
	}
	return text
}

// Summary says what was recorded.
func Summary(s control.CaptureState) string {
	packets := "packets"
	if s.Packets == 1 {
		packets = "packet"
	}
	return fmt.Sprintf("%d %s, %d bytes, %d lost", s.Packets, packets, s.Bytes, s.Dropped)
}

// Record has the daemon behind socket record packets until ctx ends, or until o.Count packets are
// written. If not all of them are wanted, the daemon writes to a pipe, from which Record selects.
// The daemon accepts the request only from its own user and root.
func Record(ctx context.Context, socket string, o RecordOptions) (Recorded, error) {
	c, err := control.Dial(ctx, socket)
	if err != nil {
		return Recorded{}, err
	}
	defer c.Close()
	if o.everything() {
		return recordAll(ctx, c, &o)
	}
	return recordSelected(ctx, c, o)
}

// recordAll has the daemon write the file.
func recordAll(ctx context.Context, c *control.Client, o *RecordOptions) (r Recorded, err error) {
	w, created := os.Stdout, false
	if o.Output != "-" {
		if w, created, err = awaitOutput(ctx, o.Output); err != nil {
			return r, err
		}
		defer w.Close()
		r.Files = []string{o.Output}
	}
	if err := c.StartCapture(ctx, w, o.Device); err != nil {
		if created {
			os.Remove(o.Output)
		}
		return r, err
	}
	if err := pollProgress(ctx, c, o.Progress); err != nil {
		return r, err
	}
	r.CaptureState, err = stopCapture(ctx, c)
	return r, err
}

func stopCapture(ctx context.Context, c *control.Client) (control.CaptureState, error) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
	defer cancel()
	return c.StopCapture(end)
}

// selectPipe is the size of the pipe from the daemon, which bridges the time in which this process
// does not run. It is what a user may have without privilege.
const selectPipe = 1 << 20

// recordSelected selects from what the daemon writes to a pipe.
func recordSelected(ctx context.Context, c *control.Client, o RecordOptions) (r Recorded, err error) {
	s := &selection{RecordOptions: o, open: func(path string) (*os.File, error) {
		f, _, err := awaitOutput(ctx, path)
		return f, err
	}}
	from, to, err := os.Pipe()
	if err != nil {
		return r, err
	}
	defer from.Close()
	if raw, err := to.SyscallConn(); err == nil { // if it fails, the pipe is only shorter
		raw.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, selectPipe) })
	}
	err = c.StartCapture(ctx, to, o.Device)
	to.Close()
	if err == nil {
		err = s.begin()
	}
	if err != nil {
		return r, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	copied := make(chan error, 1)
	go func() {
		copied <- s.copyAll(from, stop)
	}()
	progress := o.Progress
	if progress != nil {
		progress = func(seen control.CaptureState) {
			now := s.written()
			now.Dropped = seen.Dropped
			o.Progress(now)
		}
	}
	err = pollProgress(ctx, c, progress)
	seen, stopErr := stopCapture(ctx, c)
	if err == nil {
		err = stopErr
	}
	if err != nil {
		from.Close() // in case the daemon does not
	}
	copyErr, ended := s.await(copied)
	if err == nil || !errors.Is(copyErr, os.ErrClosed) {
		err = errors.Join(copyErr, err)
	}
	r = Recorded{CaptureState: s.written()}
	if ended {
		r.Files = s.files
	}
	r.Dropped = seen.Dropped
	return r, err
}

// copyAll writes the selected frames, and calls done when they are written. Then the daemon is to
// stop its capture, at the end of which are the statistics.
func (s *selection) copyAll(from io.Reader, done func()) error {
	r, err := capture.NewReader(from, "capture")
	if err == nil {
		err = s.copy(r)
	}
	done()
	if err == nil {
		for range r.Records() {
		}
	}
	io.Copy(io.Discard, from) // an error must not keep the daemon from writing
	return errors.Join(err, s.end())
}

// await waits for the result of the goroutine that writes the files. Where the reader of a pipe or
// FIFO has stopped reading, that goroutine may never end: await gives up if nothing was written for
// stopTimeout, and ended is false.
func (s *selection) await(copied <-chan error) (err error, ended bool) {
	for before := s.written(); ; {
		select {
		case err := <-copied:
			return err, true
		case <-time.After(stopTimeout):
		}
		now := s.written()
		if now == before {
			return errNotRead, false
		}
		before = now
	}
}

// awaitOutput is openOutput for a file that may be a FIFO: it waits for a reader until ctx ends.
func awaitOutput(ctx context.Context, file string) (w *os.File, created bool, err error) {
	for {
		w, created, err = openOutput(file)
		if !errors.Is(err, unix.ENXIO) {
			return w, created, err
		}
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-time.After(readerInterval):
		}
	}
}

// progressInterval is the time between two calls of progress.
const progressInterval = 200 * time.Millisecond

// pollProgress reports progress until ctx ends or the connection to the daemon fails.
func pollProgress(ctx context.Context, c *control.Client, progress func(control.CaptureState)) error {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s, err := c.CaptureState(ctx)
		switch {
		case err == nil:
			if progress != nil {
				progress(s)
			}
		case errors.Is(err, context.Canceled):
			return nil
		default:
			return err
		}
	}
}
