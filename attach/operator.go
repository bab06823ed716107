package attach

import (
	"encoding/json"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/internal/metrics"
	"softroce/internal/suggest"
	"softroce/internal/sysfs"
)

// A snapshotText is a snapshot as JSON, in memory that no process can change.
type snapshotText struct {
	fd     int
	length int
}

// snapshot builds the text once for all clients that may see the same and ask at the same time.
func (c *conn) snapshot(*empty, *control.Packet) (prepared, error) {
	viewer := "operator"
	if !c.peer.privileged() {
		viewer = strconv.Itoa(int(c.peer.UID))
	}
	var a reply
	err := c.server.texts.share(viewer, c.snapshotText, func(t snapshotText) error {
		fd, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0)
		a = reply{body: []any{abi.SnapshotReply{Length: uint64(t.length)}}, fds: []int{fd}, closeAfter: []int{fd}}
		return err
	}, func(t snapshotText) { unix.Close(t.fd) })
	return a.prepared(), err
}

func (c *conn) snapshotText() (t snapshotText, err error) {
	seen := c.server.Snapshot()
	if !c.peer.privileged() {
		seen = seen.VisibleTo(c.peer.UID)
	}
	var v any = seen
	if c.server.config.Render != nil {
		v = c.server.config.Render(seen)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return t, err
	}
	fd, err := unix.MemfdCreate("softroce-snapshot", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return t, err
	}
	// Pwrite either writes the whole text or fails for lack of memory.
	if n, err := unix.Pwrite(fd, text, 0); err != nil || n != len(text) {
		unix.Close(fd)
		return t, errorf(syscall.ENOMEM, "no memory for a snapshot of %d bytes", len(text))
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return t, err
	}
	return snapshotText{fd, len(text)}, nil
}

// prepared returns a as the outcome of a request that is complete.
func (a reply) prepared() prepared {
	return prepared{
		commit: func() (reply, error) { return a, nil },
		abandon: func() {
			for _, fd := range a.closeAfter {
				unix.Close(fd)
			}
		},
	}
}

// openTree visits all engines.
func (c *conn) openTree(*empty, *control.Packet) (prepared, error) {
	dir, err := c.server.tree.Open(c.server.files)
	if err != nil {
		return prepared{}, err
	}
	defer dir.Close()
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return prepared{}, err
	}
	return reply{fds: []int{fd}, closeAfter: []int{fd}}.prepared(), nil
}

// files returns the files that sysfs has for the devices.
func (s *Server) files() []sysfs.File {
	files := sysfs.CommonFiles()
	for i, d := range s.devices {
		var seen sysfs.Device
		d.engine.Do(func() { seen = sysfs.ReadDevice(d.Device, i) })
		files = append(files, sysfs.Render(&seen)...)
	}
	return files
}

// startCapture requires root or the daemon's user, because a capture has the data of all clients.
func (c *conn) startCapture(v *abi.StartCaptureRequest, p *control.Packet) (prepared, error) {
	name := abi.Text(v.Device[:])
	switch _, known := c.server.findDevice(name); {
	case !c.peer.privileged():
		return prepared{}, errorf(syscall.EACCES, "captures require root or user %d", os.Geteuid())
	case c.server.config.Capture == nil:
		return prepared{}, errorf(syscall.EOPNOTSUPP, "the daemon does not capture")
	case !known:
		return prepared{}, c.server.noDevice(name)
	case len(p.FDs) != 1:
		return prepared{}, errorf(syscall.EINVAL, "a capture requires the descriptor of its file")
	}
	if err := checkAccess(p.FDs[0], unix.O_WRONLY, unix.O_RDWR); err != nil {
		return prepared{}, err
	}
	if !c.capturing.CompareAndSwap(false, true) {
		return prepared{}, errorf(syscall.EBUSY, "the connection already has a capture")
	}
	capture, err := c.server.config.Capture.StartCapture(os.NewFile(uintptr(p.Take()), "capture"), name)
	if err != nil {
		c.capturing.Store(false)
		return prepared{}, err
	}
	return prepared{
		commit:  func() (reply, error) { c.capture = capture; return reply{}, nil },
		abandon: func() { capture.Stop() },
	}, nil
}

func (c *conn) queryCapture(*empty, *control.Packet) (reply, error) {
	if c.capture == nil {
		return reply{}, errorf(syscall.ENOENT, "the connection has no capture")
	}
	state, err := c.capture.State()
	if err != nil {
		return reply{}, err
	}
	return reply{body: []any{state}}, nil
}

// stopCapture waits for the reader of the file.
func (c *conn) stopCapture(*empty) (func() (reply, error), error) {
	capture := c.takeCapture()
	if capture == nil {
		return nil, errorf(syscall.ENOENT, "the connection has no capture")
	}
	defer c.capturing.Store(false)
	if err := capture.Stop(); err != nil {
		return nil, err
	}
	state, _ := capture.State()
	return func() (reply, error) { return reply{body: []any{state}}, nil }, nil
}

// takeCapture removes the capture from the connection and returns it, or nil.
func (c *conn) takeCapture() (capture Capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	capture, c.capture = c.capture, nil
	return capture
}

// operated returns the device of a request that requires root or the daemon's user.
func (c *conn) operated(nic []byte, what string) (d device, err error) {
	if err := c.checkOperator(what); err != nil {
		return d, err
	}
	name := abi.Text(nic)
	d, known := c.server.findDevice(name)
	if !known || name == "" {
		return d, c.server.noDevice(name)
	}
	return d, nil
}

// checkOperator returns an error unless the client is root or the daemon's user.
func (c *conn) checkOperator(what string) error {
	if !c.peer.privileged() {
		return errorf(syscall.EACCES, "%s requires root or user %d", what, os.Geteuid())
	}
	return nil
}

// setLink does what unplugging a cable does.
func (c *conn) setLink(v *abi.SetLinkRequest, _ *control.Packet) (reply, error) {
	d, err := c.operated(v.Device[:], "setting the link")
	if err != nil {
		return reply{}, err
	}
	if v.Up > 1 {
		return reply{}, errorf(syscall.EINVAL, "link state %d: want 0 or 1", v.Up)
	}
	port := max(1, v.Port)
	if d.engine.Do(func() { err = d.SetPort(int(port), v.Up == 1) }); err == nil {
		c.server.log.Info("link set", "nic", d.Name(), "port", port, "up", v.Up == 1, "pid", c.peer.PID)
	}
	return reply{}, err
}

// fireEvent raises an event.
func (c *conn) fireEvent(v *abi.FireEventRequest, _ *control.Packet) (reply, error) {
	d, err := c.operated(v.Device[:], "raising an event")
	if err != nil {
		return reply{}, err
	}
	if d.engine.Do(func() { err = d.Fire(ib.EventType(v.Event), v.Number) }); err == nil {
		c.server.log.Info("event raised", "nic", d.Name(), "event", ib.EventType(v.Event), "object", v.Number, "pid", c.peer.PID)
	}
	return reply{}, err
}

// setCounter sets a counter of a NIC.
func (c *conn) setCounter(v *abi.SetCounterRequest, _ *control.Packet) (reply, error) {
	d, err := c.operated(v.Device[:], "setting a counter")
	if err != nil {
		return reply{}, err
	}
	name := abi.Text(v.Counter[:])
	k := metrics.Find(name)
	if k == nil {
		return reply{}, errorf(syscall.EINVAL, "%q is not a counter%s", name, suggest.Word(name, metrics.Names()))
	}
	d.engine.Do(func() {
		n := d.Counters()
		d.ShiftCounter(name, v.Value-k.Value(&n))
	})
	c.server.log.Info("counter set", "nic", d.Name(), "counter", name, "value", v.Value, "pid", c.peer.PID)
	return reply{}, nil
}

// setCongestion sets a parameter of a NIC's congestion control.
func (c *conn) setCongestion(v *abi.SetCongestionRequest, _ *control.Packet) (reply, error) {
	d, err := c.operated(v.Device[:], "setting congestion control")
	if err != nil {
		return reply{}, err
	}
	name, value := abi.Text(v.Name[:]), abi.Text(v.Value[:])
	if d.engine.Do(func() { err = d.SetCongestion(name, value) }); err != nil {
		return reply{}, errorf(syscall.EINVAL, "%v", err)
	}
	c.server.log.Info("congestion control set", "nic", d.Name(), name, value, "pid", c.peer.PID)
	return reply{}, nil
}

// setPKeys does the job of a subnet manager.
func (c *conn) setPKeys(v *abi.SetPKeysRequest, _ *control.Packet) (reply, error) {
	d, err := c.operated(v.Device[:], "setting P_Keys")
	if err != nil {
		return reply{}, err
	}
	if v.Count > abi.MaxPKeys {
		return reply{}, errorf(syscall.EINVAL, "P_Key table of %d entries: want 1 to %d", v.Count, abi.MaxPKeys)
	}
	d.engine.Do(func() { err = d.SetPKeys(v.PKeys[:v.Count]) })
	return reply{}, err
}
