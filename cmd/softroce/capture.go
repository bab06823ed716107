package main

import (
	"fmt"
	"sync/atomic"

	"softroce/internal/control"
	"softroce/internal/daemon"
)

type captureCmd struct {
	daemonFlags
	Output string   `short:"o" required:"" placeholder:"FILE" complete:"<files>" help:"The pcapng file to write; - is standard output."`
	Device *string  `placeholder:"NIC" complete:"<nics>" help:"Record only the packets of this NIC (default: all)."`
	Filter []string `sep:"none" placeholder:"CONDITIONS" help:"Record only the packets that meet the conditions of a fault rule, such as 'qp 0x11 kind nak'. May be repeated, for packets that meet any of several filters."`

	SnapLen  *string `name:"snaplen" placeholder:"BYTES" help:"Record only the first bytes of each frame."`
	Count    *string `placeholder:"N" help:"End after this number of packets."`
	FileSize *string `placeholder:"SIZE" help:"Begin a new file when the current one has this size, such as 100MiB: FILE_00001, FILE_00002 …"`
	FileTime *string `placeholder:"DURATION" help:"Begin a new file when the current one covers this time, such as 10m."`
	Files    *string `placeholder:"N" help:"Keep only the newest files."`
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
	fmt.Fprintln(e.err, r)
	return nil
}

func (c *captureCmd) options() (o daemon.RecordOptions, err error) {
	o.Output = c.Output
	set := func(name, value string) {
		if err == nil {
			err = o.Set(name, value)
		}
	}
	for name, value := range map[string]*string{
		"device": c.Device, "snaplen": c.SnapLen, "count": c.Count, "file-size": c.FileSize, "file-time": c.FileTime, "files": c.Files,
	} {
		if value != nil {
			set(name, *value)
		}
	}
	for _, f := range c.Filter {
		set("filter", f)
	}
	if err != nil {
		return o, usagef("--%w", err)
	}
	if err := o.Check(); err != nil {
		return o, &usageError{err}
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
