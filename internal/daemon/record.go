package daemon

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
)

// Record has the daemon behind socket write the packets of device, or of all NICs if device is
// empty, to file, or to standard output if file is "-", until ctx ends. It calls progress, if not
// nil, several times a second with the counts so far. The daemon accepts the request only from its
// own user and root.
func Record(ctx context.Context, socket, device, file string, progress func(control.CaptureState)) (control.CaptureState, error) {
	c, err := control.Dial(ctx, socket)
	if err != nil {
		return control.CaptureState{}, err
	}
	defer c.Close()
	w, created := os.Stdout, false
	if file != "-" {
		if w, created, err = awaitOutput(ctx, file); err != nil {
			return control.CaptureState{}, err
		}
		defer w.Close()
	}
	if err := c.StartCapture(ctx, w, device); err != nil {
		if created {
			os.Remove(file)
		}
		return control.CaptureState{}, err
	}
	if err := pollProgress(ctx, c, progress); err != nil {
		return control.CaptureState{}, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
	defer cancel()
	return c.StopCapture(end)
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
