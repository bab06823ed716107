package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"softroce/internal/control"
	"softroce/internal/daemon"
)

type captureCmd struct {
	daemonFlags
	Output string   `short:"o" required:"" placeholder:"FILE" complete:"<files>" help:"The pcapng file to write; - is standard output."`
	Device string   `placeholder:"NIC" complete:"<nics>" help:"Record only the packets of this NIC (default: all)."`
	Filter []string `sep:"none" placeholder:"CONDITIONS" help:"Record only the packets that meet the conditions of a fault rule, such as 'qp 0x11 kind nak'. May be repeated: packets that meet one of them."`

	SnapLen  int           `name:"snaplen" placeholder:"BYTES" help:"Record only the first bytes of each frame."`
	Count    uint64        `placeholder:"N" help:"End after this number of packets."`
	FileSize string        `placeholder:"SIZE" help:"Begin a new file when one has this size, such as 100MiB: FILE_00001, FILE_00002 …"`
	FileTime time.Duration `placeholder:"DURATION" help:"Begin a new file when one has the packets of this time, such as 10m."`
	Files    int           `placeholder:"N" help:"Keep only the newest files."`
}

func (c *captureCmd) Run(e *env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	found, err := e.find()
	if err != nil {
		return err
	}
	defer found.Close()
	var now captured
	o.Progress = func(s control.CaptureState) { now.Store(&s) }
	stop := e.showProgress(&now)
	r, err := daemon.Record(e, found.Socket, o)
	stop()
	if err != nil {
		return err
	}
	text := daemon.Summary(r.CaptureState)
	if n := len(r.Files); o.FileSize+int64(o.FileTime) > 0 && n > 0 {
		text += fmt.Sprintf("; %d files, %s to %s", n, r.Files[0], r.Files[n-1])
	}
	fmt.Fprintln(e.err, text)
	return nil
}

func (c *captureCmd) options() (o daemon.RecordOptions, err error) {
	o = daemon.RecordOptions{Device: c.Device, Output: c.Output, SnapLen: c.SnapLen, Count: c.Count, FileTime: c.FileTime, Files: c.Files}
	if o.Filter, err = parseFilter(c.Filter); err != nil {
		return o, err
	}
	if c.FileSize != "" {
		n, err := daemon.ParseBytes(c.FileSize)
		if err != nil {
			return o, &usageError{fmt.Errorf("--file-size: %w", err)}
		}
		if o.FileSize = int64(n); o.FileSize <= 0 {
			return o, usagef("--file-size %s: want 1 byte or more", c.FileSize)
		}
	}
	rotates := o.FileSize > 0 || o.FileTime > 0
	switch {
	case c.SnapLen < 0 || c.FileTime < 0 || c.Files < 0:
		return o, usagef("--snaplen, --file-time and --files: want 1 or more")
	case c.Files > 0 && !rotates:
		return o, usagef("--files needs --file-size or --file-time")
	case rotates && c.Output == "-":
		return o, usagef("-o -: standard output is one file; --file-size and --file-time need a name")
	}
	return o, nil
}

// captured is what a capture has recorded so far.
type captured struct {
	atomic.Pointer[control.CaptureState]
}

// String implements fmt.Stringer.
func (c *captured) String() string {
	s := c.Load()
	if s == nil {
		return "waiting"
	}
	return daemon.Summary(*s)
}
