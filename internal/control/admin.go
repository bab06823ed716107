package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
)

// Snapshot returns the daemon's state as JSON.
func (c *Client) Snapshot(ctx context.Context) ([]byte, error) {
	var got abi.SnapshotReply
	p, err := c.Call(ctx, Request{Name: "snapshot", Op: abi.OpSnapshot, Reply: &got, Want: 1})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(p.Take()), "snapshot")
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, 0, int64(got.Length)))
}

// OpenTree updates the files that sysfs has for the devices and opens their directory.
func (c *Client) OpenTree(ctx context.Context) (*os.File, error) {
	p, err := c.Call(ctx, Request{Name: "open tree", Op: abi.OpOpenTree, Want: 1})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(p.Take()), "tree"), nil
}

// CaptureState is the progress of a capture.
type CaptureState = abi.CaptureReply

// StartCapture makes the daemon write the packets of a device's link ("" means all devices) to w,
// until StopCapture or the end of the connection. A connection has at most one capture (EBUSY).
// Captures require root or the daemon's user (EACCES).
func (c *Client) StartCapture(ctx context.Context, w *os.File, device string) error {
	var req abi.StartCaptureRequest
	abi.PutText(req.Device[:], device)
	raw, err := w.SyscallConn() // Fd would make a FIFO block the daemon's writes
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		_, failed = c.Call(ctx, Request{
			Name: "start capture", Op: abi.OpStartCapture, Body: []any{req}, FDs: []int{int(fd)},
		})
	})
	return errors.Join(err, failed)
}

// CaptureState returns the progress of the capture.
func (c *Client) CaptureState(ctx context.Context) (s CaptureState, err error) {
	_, err = c.Call(ctx, Request{Name: "query capture", Op: abi.OpQueryCapture, Reply: &s})
	return s, err
}

// StopCapture ends the capture. When it returns, all packets are written.
func (c *Client) StopCapture(ctx context.Context) (s CaptureState, err error) {
	_, err = c.Call(ctx, Request{Name: "stop capture", Op: abi.OpStopCapture, Reply: &s})
	return s, err
}

// SetLink is SetPort for port 1.
func (c *Client) SetLink(ctx context.Context, device string, up bool) error {
	return c.SetPort(ctx, device, 1, up)
}

// SetPort disables a port of a device, or enables it again. Its errors are those of SetPKeys, and
// EINVAL if the device does not have the port.
func (c *Client) SetPort(ctx context.Context, device string, port uint32, up bool) error {
	req := abi.SetLinkRequest{Port: port}
	abi.PutText(req.Device[:], device)
	if up {
		req.Up = 1
	}
	_, err := c.Call(ctx, Request{Name: "set link", Op: abi.OpSetLink, Body: []any{req}})
	return err
}

// AddFaults adds the rules of a program in the fault language to those that the daemon has. It
// returns the IDs that they got, from first to last. Its errors are EINVAL for a wrong program,
// ENODEV for a rule of a NIC that the daemon does not have, and EACCES as SetPKeys.
func (c *Client) AddFaults(ctx context.Context, program string) (first, last int, err error) {
	if len(program) > abi.FaultsMax {
		return 0, 0, fmt.Errorf("fault program of %d bytes: at most %d can be added at a time: %w", len(program), abi.FaultsMax, syscall.EMSGSIZE)
	}
	var got abi.AddFaultsReply
	_, err = c.Call(ctx, Request{
		Name: "add faults", Op: abi.OpAddFaults, Body: []any{abi.AddFaultsRequest{Length: uint32(len(program))}, []byte(program)}, Reply: &got,
	})
	return int(got.First), int(got.Last), err
}

// RemoveFault removes a rule of the daemon's fault programs. Its errors are ENOENT, and EACCES as
// SetPKeys.
func (c *Client) RemoveFault(ctx context.Context, id int) error {
	_, err := c.Call(ctx, Request{Name: "remove fault", Op: abi.OpRemoveFault, Body: []any{abi.RemoveFaultRequest{ID: uint32(id)}}})
	return err
}

// FireEvent raises an asynchronous event of a device, or of a queue pair, CQ or SRQ that number
// names: see abi.FireEventRequest. Its errors are EINVAL, ENODEV, ENOENT, ENETDOWN for PORT_ACTIVE
// of a port whose interface is down, and EACCES as SetPKeys.
func (c *Client) FireEvent(ctx context.Context, device string, event ib.EventType, number uint32) error {
	req := abi.FireEventRequest{Event: uint32(event), Number: number}
	abi.PutText(req.Device[:], device)
	_, err := c.Call(ctx, Request{Name: "fire event", Op: abi.OpFireEvent, Body: []any{req}})
	return err
}

// SetCounter sets a counter of a device. Its errors are EINVAL, ENODEV, and EACCES as SetPKeys.
func (c *Client) SetCounter(ctx context.Context, device, counter string, value uint64) error {
	req := abi.SetCounterRequest{Value: value}
	abi.PutText(req.Device[:], device)
	abi.PutText(req.Counter[:], counter)
	_, err := c.Call(ctx, Request{Name: "set counter", Op: abi.OpSetCounter, Body: []any{req}})
	return err
}

// SetCongestion sets a parameter of a device's congestion control: see abi.SetCongestionRequest.
// Its errors are EINVAL, ENODEV, and EACCES as SetPKeys.
func (c *Client) SetCongestion(ctx context.Context, device, name, value string) error {
	var req abi.SetCongestionRequest
	abi.PutText(req.Device[:], device)
	abi.PutText(req.Name[:], name)
	abi.PutText(req.Value[:], value)
	_, err := c.Call(ctx, Request{Name: "set congestion control", Op: abi.OpSetCongestion, Body: []any{req}})
	return err
}

// SetPKeys replaces the P_Key table of a device. Its errors are EINVAL, ENODEV, and EACCES for
// users other than root and the daemon's.
func (c *Client) SetPKeys(ctx context.Context, device string, keys []uint16) error {
	req := abi.SetPKeysRequest{Count: uint32(len(keys))}
	abi.PutText(req.Device[:], device)
	copy(req.PKeys[:], keys)
	_, err := c.Call(ctx, Request{Name: "set P_Keys", Op: abi.OpSetPKeys, Body: []any{req}})
	return err
}
