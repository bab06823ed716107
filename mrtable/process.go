package mrtable

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// A Process accesses the address space of a client without mapping it: through process_vm_readv and
// process_vm_writev, or through a descriptor of its /proc/self/mem. OpenProcess and Memory may be
// called from any goroutine.
type Process struct {
	pid   int
	pidfd int  // -1 if mem is used
	mem   int  // descriptor of /proc/PID/mem, or -1
	self  bool // the process is this program

	Closed func() // if not nil, called when the last reference is released

	mu   sync.Mutex
	refs int // one for the opener, one for each Memory
}

// OpenProcess returns a Process that uses process_vm_readv and process_vm_writev. pidfd refers to
// the process (SO_PEERPIDFD) and stays owned by the caller; if it is -1, OpenProcess opens one.
//
// It returns ErrGone if the process has ended, and ErrPermission unless all of its user IDs are
// those of this program; use OpenProcessMem then. The kernel would grant root access to any
// process, but these calls identify a process by its PID, and the client can turn it into a
// set-user-ID program by execve. With equal IDs this gains the client nothing, because the kernel
// checks them in each call.
func OpenProcess(pid, pidfd int) (*Process, error) {
	var err error
	if pidfd < 0 {
		pidfd, err = unix.PidfdOpen(pid, 0)
	} else {
		pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, processError(err))
	}
	p := &Process{pid: pid, pidfd: pidfd, mem: -1, refs: 1}
	if err := p.permitted(); err != nil {
		p.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return p, nil
}

// permitted compares the user IDs of the process with ours. It reads the real ones from status,
// because root owns /proc/PID of a process that is not dumpable.
func (p *Process) permitted() error {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status")
	if err != nil || !p.alive() {
		return ErrGone
	}
	_, rest, _ := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	ids := strings.Fields(string(line))
	own := strconv.Itoa(os.Geteuid())
	for _, id := range ids {
		if id != own {
			return ErrPermission
		}
	}
	if len(ids) == 0 {
		return ErrPermission
	}
	return nil
}

// OpenProcessMem returns a Process that uses a descriptor of /proc/self/mem, which the client
// opened for reading and writing. It works across users and namespaces. The descriptor belongs to
// the program that opened it: after an execve it accesses nothing.
//
// Through it the kernel writes even to pages that the process maps read-only; only the rights and
// bounds of the region protect them.
//
// The caller keeps ownership of the descriptor. A descriptor other than /proc/PID/mem gives
// ErrNotMemory, since any other file could block the engine.
func OpenProcessMem(fd int) (*Process, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotMemory, err)
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || fs.Type != unix.PROC_SUPER_MAGIC || !isMemFile(name) {
		return nil, fmt.Errorf("%w: %q is no /proc/PID/mem", ErrNotMemory, name)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return nil, fmt.Errorf("%w: %q is not open for reading and writing", ErrNotMemory, name)
	}
	mem, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("memory of a process: %w", err)
	}
	return &Process{pidfd: -1, mem: mem, refs: 1}, nil
}

// isMemFile reports whether name ends as /proc/PID/mem does. The prefix depends on the client's
// mount of /proc.
func isMemFile(name string) bool {
	parts := strings.Split(name, "/")
	n := len(parts)
	if n < 2 || parts[n-1] != "mem" {
		return false
	}
	_, err := strconv.ParseUint(parts[n-2], 10, 32)
	return err == nil
}

// Close releases the opener's reference. Memory made from p stays usable.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return ErrGone
	}
	if p.refs--; p.refs > 0 || p.self {
		return nil
	}
	if p.Closed != nil {
		defer p.Closed()
	}
	fd := p.pidfd
	if p.mem >= 0 {
		fd = p.mem
	}
	return unix.Close(fd)
}

// Memory returns length bytes of the process starting at base. Unless a has AccessOnDemand, the
// first and last byte must be readable, otherwise it returns ErrFault, as ibv_reg_mr returns
// EFAULT. No page is pinned: an access to memory that the process has unmapped fails.
func (p *Process) Memory(base, length uint64, a ib.Access) (Memory, error) {
	if length > 0 && base > math.MaxUint64-(length-1) {
		return nil, ErrBounds
	}
	if !p.retain() {
		return nil, ErrGone
	}
	if length > 0 && a&ib.AccessOnDemand == 0 {
		if err := p.probe(base, base+length-1); err != nil {
			p.Close()
			return nil, fmt.Errorf("memory at %#x, %d bytes: %w", base, length, err)
		}
	}
	return &processMemory{process: p, base: base, length: length}, nil
}

// retain adds a reference, unless none is left.
func (p *Process) retain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return false
	}
	p.refs++
	return true
}

// probe reads two bytes, if possible with one system call.
func (p *Process) probe(first, last uint64) error {
	var b [2]byte
	n, err := p.readv(
		[]unix.Iovec{{Base: &b[0], Len: 1}, {Base: &b[1], Len: 1}},
		[]unix.RemoteIovec{{Base: uintptr(first), Len: 1}, {Base: uintptr(last), Len: 1}})
	if err == nil && n < len(b) {
		return ErrFault
	}
	return err
}

// processMemory is an address range of a process.
type processMemory struct {
	process      *Process
	base, length uint64
	closed       bool
	mapping      *mapped // of a Process from OpenSelf
}

func (m *processMemory) Len() uint64             { return m.length }
func (m *processMemory) View(uint64, int) []byte { return nil }

func (m *processMemory) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	if m.mapping != nil {
		m.mapping.Close()
	}
	return m.process.Close()
}

// alive reports whether the process has not ended. A PID is reused only after all others were, so
// the result holds far longer than an engine's step. A mem descriptor needs no check: it refers to
// the address space itself.
func (p *Process) alive() bool {
	if p.mem >= 0 || p.self {
		return true
	}
	fds := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}

// readv copies from the remote pieces to the local ones, in order. It returns how many bytes it
// copied before a failure, and the error if that is none.
func (p *Process) readv(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	switch {
	case p.mem >= 0:
		return p.memv(unix.SYS_PREADV, local, remote)
	case p.self:
		return p.selfv(unix.SYS_PROCESS_VM_WRITEV, local, remote)
	}
	n, err := unix.ProcessVMReadv(p.pid, local, remote, 0)
	return vectorResult(n, err)
}

// writev copies from the local pieces to the remote ones, in the manner of readv. A remote piece is
// stored after those before it.
func (p *Process) writev(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	switch {
	case p.mem >= 0:
		return p.memv(unix.SYS_PWRITEV, local, remote)
	case p.self:
		return p.selfv(unix.SYS_PROCESS_VM_READV, local, remote)
	}
	n, err := unix.ProcessVMWritev(p.pid, local, remote, 0)
	return vectorResult(n, err)
}

func vectorResult(n int, err error) (int, error) {
	if err != nil {
		return 0, processError(err)
	}
	if n <= 0 {
		return 0, ErrFault
	}
	return n, nil
}

// processError converts a kernel error to one of this package.
func processError(err error) error {
	switch err {
	case unix.ESRCH:
		return ErrGone
	case unix.EPERM, unix.EACCES:
		return ErrPermission
	case unix.EFAULT, unix.EIO, unix.EINVAL: // /proc/PID/mem: EIO for a missing page, EINVAL from 2^63 on
		return ErrFault
	}
	return err
}
