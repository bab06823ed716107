package run

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/nicspec"
	"softroce/internal/persona"
	"softroce/internal/tempdir"
)

// A lease keeps a daemon in use.
type lease struct {
	socket string
	conn   *control.Client // keeps the daemon from exiting before the program does
	notes  []string        // why it is this daemon, and what else a user may have expected

	// For a daemon that was started here:
	nics    []string    // its lines of NICs
	capture string      // the file that it records, as it knows it
	private bool        // configured for this program, and stopped with it
	process *os.Process // nil if the daemon was already running
	exited  chan exit
	log     *logBuffer
	dir     string // directory to remove
}

// An exit is how a daemon has exited.
type exit struct {
	err  error
	last string // the last line that it has written
}

// acquire finds or starts a daemon.
//
// If the options configure a daemon (NICs, faults, a capture), it is private to this program, on a
// new socket unless Socket names one. Otherwise it is the daemon that every command finds
// (control.Find). If there is none, all programs that the user runs at the same time share one, so
// that programs in two terminals can communicate.
func (o *Options) acquire(ctx context.Context) (*lease, error) {
	named := control.Named(o.Socket)
	if named != "" {
		named = control.Absolute(named)
	}
	if named == "" && o.customized() {
		return o.startPrivate(ctx)
	}
	found, err := control.Find(ctx, named)
	var none *control.NotFoundError
	switch {
	case err == nil && o.customized():
		found.Close()
		return nil, fmt.Errorf("a daemon already runs on %s: --nic, --fault and --capture apply only to a daemon that softroce run starts", named)
	case err == nil:
		d := &lease{socket: found.Socket, conn: found.Client}
		d.noteDenied(found.Denied)
		if named == "" {
			d.noteOthers()
		}
		return d, nil
	case !errors.Is(err, control.ErrNoDaemon):
		return nil, err
	case named != "" && o.customized():
		return o.start(ctx, named, "")
	case named != "":
		return o.share(ctx, named)
	}
	errors.As(err, &none)
	return o.shareUnnamed(ctx, none)
}

// noteDenied notes the daemons that deny access to this user.
func (d *lease) noteDenied(sockets []string) {
	if len(sockets) > 0 {
		d.notes = append(d.notes, fmt.Sprintf("the daemon on %s denies access to this user", strings.Join(sockets, " and ")))
	}
}

// noteOthers notes the other daemons that the user may have meant.
func (d *lease) noteOthers() {
	if o := control.Others(d.socket); len(o) > 0 {
		d.notes = append(d.notes, fmt.Sprintf("other daemons, which --socket selects: %s", strings.Join(o, ", ")))
	}
}

// shareUnnamed starts the daemon that the user's programs share. If there is no place for its
// socket that they all find, the daemon is private to this program.
func (o *Options) shareUnnamed(ctx context.Context, none *control.NotFoundError) (d *lease, err error) {
	socket, taken, placeErr := control.UserSocket()
	if placeErr == nil {
		d, err = o.share(ctx, socket)
	} else {
		d, err = o.startPrivate(ctx)
	}
	if err != nil {
		return nil, err
	}
	d.noteDenied(none.Denied)
	switch {
	case placeErr != nil:
		d.notes = append(d.notes, fmt.Sprintf("no other softroce run finds this daemon (%v): use --socket %s there", placeErr, d.socket))
	case taken != "":
		d.notes = append(d.notes, fmt.Sprintf("%s is not this user's alone and was not used", taken))
	}
	d.noteOthers()
	return d, nil
}

// startPrivate starts a daemon on a socket in a new directory.
func (o *Options) startPrivate(ctx context.Context) (*lease, error) {
	dir, err := os.MkdirTemp(tempdir.ForSocket(), "softroce-")
	if err != nil {
		return nil, err
	}
	d, err := o.start(ctx, filepath.Join(dir, "socket"), dir)
	if err != nil {
		os.RemoveAll(dir)
	}
	return d, err
}

// shareAttempts bounds how often share retries because a daemon exits or another one starts at the
// same time.
const shareAttempts = 10

// share finds or starts the daemon that a user's programs share.
func (o *Options) share(ctx context.Context, socket string) (*lease, error) {
	var d *lease
	var err error
	for range shareAttempts {
		found, dialErr := control.Find(ctx, socket)
		if dialErr == nil {
			return &lease{socket: socket, conn: found.Client}, nil
		}
		if !errors.Is(dialErr, control.ErrNoDaemon) {
			return nil, dialErr
		}
		if d, err = o.start(ctx, socket, ""); err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	return nil, err
}

// customized reports whether the options configure a daemon.
func (o *Options) customized() bool { return len(o.NICs) > 0 || o.Fault != "" || o.Capture != "" }

// firstExtraFile is the name that the first of exec.Cmd.ExtraFiles has in the new process.
const firstExtraFile = "/dev/fd/3"

// start starts a daemon in a new session, so that it does not receive the signals of the terminal.
func (o *Options) start(ctx context.Context, socket, dir string) (*lease, error) {
	d := &lease{socket: socket, private: o.customized() || dir != "", dir: dir, exited: make(chan exit, 1), log: &logBuffer{}}
	args := []string{"softroce", "daemon", "--while-used", "--socket", socket}
	for _, n := range o.NICs {
		if persona.IsFile(n.Persona) {
			n.Persona = daemonPath(n.Persona)
		}
		args = append(args, "--nic", n.String())
	}
	if o.Fault != "" {
		args = append(args, "--fault", daemonPath(o.Fault))
	}
	var passed []*os.File
	if o.Capture != "" {
		file, options := daemon.SplitCapture(o.Capture)
		if file == "-" {
			file = "/dev/stdout"
		}
		// A descriptor is passed and not opened again: the file may be a socket or of another user,
		// and it must keep its contents.
		if fd, ok := daemon.Descriptor(file); ok {
			f, err := daemon.Duplicate(fd, file)
			if err != nil {
				return nil, fmt.Errorf("capture: %w", err)
			}
			defer f.Close()
			passed, file = []*os.File{f}, firstExtraFile
		}
		d.capture = control.Absolute(file)
		args = append(args, "--capture", daemon.JoinCapture(d.capture, options))
	}
	if o.CaptureBlocking {
		args = append(args, "--capture-blocking")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Stderr, cmd.ExtraFiles = args, "/", d.log, passed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := withInheritedCloexec(cmd.Start); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d.process = cmd.Process
	// The daemon may block on a fault program that is a FIFO.
	defer context.AfterFunc(ctx, func() { cmd.Process.Kill() })()
	lines := bufio.NewScanner(ready)
	if lines.Scan() {
		d.nics = append(d.nics, lines.Text())
	}
	for len(d.nics) > 0 && len(d.nics) < o.nicCount() && lines.Scan() {
		d.nics = append(d.nics, lines.Text())
	}
	go func() {
		var e exit
		for lines.Scan() {
			e.last = lines.Text()
		}
		e.err = cmd.Wait()
		d.exited <- e
	}()
	if len(d.nics) == 0 {
		e := <-d.exited
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if text := d.log.buffered(); text != "" {
			return nil, errors.New(strings.TrimPrefix(text, "softroce: "))
		}
		return nil, fmt.Errorf("the daemon exited during startup: %w", e.err)
	}
	if d.conn, err = control.Dial(ctx, socket); err != nil {
		d.release()
		return nil, err
	}
	d.log.forwardTo(o.Stderr)
	return d, nil
}

// daemonPath returns a path by which the daemon, which has another directory and other descriptors,
// can open our file. For "--fault <(command)", for example, a shell passes the name of a descriptor
// of ours. "-" is standard input.
func daemonPath(path string) string {
	if path == "-" {
		path = "/dev/stdin"
	}
	if fd, ok := daemon.Descriptor(path); ok {
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	}
	return control.Absolute(path)
}

// nicCount returns the number of NICs of the daemon to start.
func (o *Options) nicCount() int {
	if len(o.NICs) > 0 {
		return len(o.NICs)
	}
	return len(nicspec.Defaults())
}

// endTimeout is how long a daemon may take to exit. It ends itself before that: see
// daemon.CloseTimeout.
const endTimeout = 10 * time.Second

// release ends the use of the daemon. A private daemon has exited and written its capture when
// release returns. recorded is what it says of the capture; empty without one.
func (d *lease) release() (recorded string, err error) {
	ending := d.process != nil && d.private
	if ending {
		// Without its last client it would end by itself, and the signal could kill it meanwhile.
		d.process.Signal(unix.SIGTERM)
	}
	if d.conn != nil {
		d.conn.Close()
	}
	if !ending {
		return "", nil
	}
	if d.dir != "" {
		defer os.RemoveAll(d.dir)
	}
	select {
	case e := <-d.exited:
		if rest, ok := strings.CutPrefix(e.last, "capture "+d.capture+": "); ok {
			recorded = rest
		}
		return recorded, e.err
	case <-time.After(endTimeout):
		d.process.Kill()
		return "", fmt.Errorf("the daemon did not exit within %v", endTimeout)
	}
}

// withInheritedCloexec calls f while the descriptors inherited from our parent, except the standard
// three, are set close-on-exec. They are meant for the program. The daemon may outlive it and would
// keep pipes and locks open.
func withInheritedCloexec(f func() error) error {
	var inherited []int
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, e := range entries {
			fd, err := strconv.Atoi(e.Name())
			if err != nil || fd <= 2 {
				continue
			}
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				inherited = append(inherited, fd)
				unix.CloseOnExec(fd)
			}
		}
	}
	err := f()
	for _, fd := range inherited {
		unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
	return err
}

// A logBuffer buffers the daemon's log until forwardTo is called, and forwards it from then on.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	to   io.Writer
}

func (r *logBuffer) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == nil {
		return r.text.Write(b)
	}
	return r.to.Write(b)
}

func (r *logBuffer) buffered() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.TrimSpace(r.text.String())
}

func (r *logBuffer) forwardTo(to io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	r.text.WriteTo(to)
}
