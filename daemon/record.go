package daemon

import (
	"context"
	"errors"
	"os"
	"time"

	"softroce/attach/control"
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
	w := os.Stdout
	if file != "-" {
		if w, err = os.Create(file); err != nil {
			return control.CaptureState{}, err
		}
		defer w.Close()
	}
	if err := c.StartCapture(ctx, w, device); err != nil {
		if file != "-" {
			os.Remove(file)
		}
		return control.CaptureState{}, err
	}
	if err := follow(ctx, c, progress); err != nil {
		return control.CaptureState{}, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTime)
	defer cancel()
	return c.StopCapture(end)
}

// progressEvery is how often progress is told.
const progressEvery = 200 * time.Millisecond

// follow tells progress until ctx ends, or the daemon does.
func follow(ctx context.Context, c *control.Client, progress func(control.CaptureState)) error {
	tick := time.NewTicker(progressEvery)
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
