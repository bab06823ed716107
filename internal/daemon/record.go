package daemon

import (
	"context"
	"errors"
	"os"
	"time"

	"softroce/internal/control"
)

// Record has the daemon behind socket write the packets of a NIC ("": of all) to a file ("-":
// to standard output) until ctx ends. progress, if not nil, hears several times a second how
// far it has come. Only the daemon's user and root may.
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

// output opens what to record to. undo removes the file again, if it was not there before:
// it may also be a device, or a pipe that has a name.
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

// progressEvery is how often progress is told.
const progressInterval = 200 * time.Millisecond

// follow tells progress until ctx ends, or the daemon does.
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
