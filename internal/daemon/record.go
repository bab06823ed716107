package daemon

import (
	"context"
	"errors"
	"os"
	"time"

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
	w, undo, err := openOutput(file)
	if err != nil {
		return control.CaptureState{}, err
	}
	if file != "-" {
		defer w.Close()
	}
	if err := c.StartCapture(ctx, w, device); err != nil {
		undo()
		return control.CaptureState{}, err
	}
	if err := pollProgress(ctx, c, progress); err != nil {
		return control.CaptureState{}, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
	defer cancel()
	return c.StopCapture(end)
}

// openOutput opens the file to record to. undo removes the file again, but only if openOutput
// created it: it may also be an existing device or FIFO.
func openOutput(file string) (w *os.File, undo func(), err error) {
	if file == "-" {
		return os.Stdout, func() {}, nil
	}
	w, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		return w, func() { os.Remove(file) }, nil
	}
	w, err = os.Create(file)
	return w, func() {}, err
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
