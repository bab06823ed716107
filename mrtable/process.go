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

// A Process is a client's address space, reached without mapping any of it: through
// process_vm_readv and process_vm_writev, or through a descriptor of its /proc/self/mem.
// OpenProcess and Memory may be called from any goroutine.
type Process struct {
	pid   int
	pidfd int  // -1 where mem is used
	mem   int  // descriptor of /proc/PID/mem, or -1
	own   bool // it is this program

	mu   sync.Mutex
	refs int // the opener and each Memory
}

// OpenProcess prepares process_vm_readv and process_vm_writev for a process. pidfd is a
// descriptor of it (SO_PEERPIDFD), which stays the caller's, or -1 to open one here.
//
// It returns ErrGone if the process has ended and ErrPermission unless each of its user IDs
// is this program's: use OpenProcessMem then. The kernel would let root reach anybody, but
// those calls name a process by its number, and what runs under that number can become a
// set-user-ID program by the client's own execve. With equal IDs that gives the client
// nothing: the kernel checks them at each call.
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

// permitted compares the process's user IDs with ours. It looks at the real ones in status:
// the owner of /proc/PID is root for any process that made itself undumpable.
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

// OpenProcessMem reaches a process through a descriptor that it opened of its own
// /proc/self/mem for reading and writing. It works across users and namespaces, and the
// descriptor means the program that opened it: after an execve, or for another process of
// the same number, there is nothing behind it.
//
// The kernel writes through it into pages that the process itself maps read-only. Only
// the rights and bounds of the region hold it back.
//
// The descriptor stays the caller's. What is not /proc/PID/mem gives ErrNotMemory: any
// other file could block the engine.
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

// isMemFile reports whether name ends as /proc/PID/mem does. What comes before depends on
// where the client's /proc is mounted.
func isMemFile(name string) bool {
	parts := strings.Split(name, "/")
	n := len(parts)
	if n < 2 || parts[n-1] != "mem" {
		return false
	}
	_, err := strconv.ParseUint(parts[n-2], 10, 32)
	return err == nil
}

// Close ends the opener's use of the process. Memory that was made of it keeps what it
// needs.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return ErrGone
	}
	if p.refs--; p.refs > 0 || p.own {
		return nil
	}
	fd := p.pidfd
	if p.mem >= 0 {
		fd = p.mem
	}
	return unix.Close(fd)
}

// Memory is length bytes of the process from address base on. Unless a has OnDemand, the
// first and last byte must be readable now: ErrFault, as ibv_reg_mr gives EFAULT. Nothing
// is pinned; what the process unmaps later makes the work fail that reaches it.
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

// retain counts one more user, unless the last one has gone.
func (p *Process) retain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return false
	}
	p.refs++
	return true
}

func (p *Process) probe(addrs ...uint64) error {
	var b [1]byte
	local := []unix.Iovec{{Base: &b[0], Len: 1}}
	for _, a := range addrs {
		remote := []unix.RemoteIovec{{Base: uintptr(a), Len: 1}}
		if _, err := p.readv(local, remote); err != nil {
			return err
		}
	}
	return nil
}

// processMemory is a range of a process's addresses.
type processMemory struct {
	process      *Process
	base, length uint64
	closed       bool
	mapping      *mapped // of a Process that is this program
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

// alive reports whether the process has not ended. A number is given to a new process
// only after all others had their turn, so the answer holds for far longer than an
// engine's step. A mem descriptor needs no proof: it is the address space itself.
func (p *Process) alive() bool {
	if p.mem >= 0 || p.own {
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

// readv copies from the remote pieces to the local ones, in order. It returns how many
// bytes were copied before something stopped it; if that is none, why.
func (p *Process) readv(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	switch {
	case p.mem >= 0:
		return p.memv(unix.SYS_PREADV, local, remote)
	case p.own:
		return p.ownv(unix.SYS_PROCESS_VM_WRITEV, local, remote)
	}
	n, err := unix.ProcessVMReadv(p.pid, local, remote, 0)
	return copied(n, err)
}

// writev copies from the local pieces to the remote ones, as readv does. The bytes of a
// remote piece are stored after those of the pieces before it.
func (p *Process) writev(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	switch {
	case p.mem >= 0:
		return p.memv(unix.SYS_PWRITEV, local, remote)
	case p.own:
		return p.ownv(unix.SYS_PROCESS_VM_READV, local, remote)
	}
	n, err := unix.ProcessVMWritev(p.pid, local, remote, 0)
	return copied(n, err)
}

func copied(n int, err error) (int, error) {
	if err != nil {
		return 0, processError(err)
	}
	if n <= 0 {
		return 0, ErrFault
	}
	return n, nil
}

// processError turns what the kernel says about another process into this package's terms.
func processError(err error) error {
	switch err {
	case unix.ESRCH:
		return ErrGone
	case unix.EPERM, unix.EACCES:
		return ErrPermission
	case unix.EFAULT, unix.EIO, unix.EINVAL: // mem says EIO without a page, EINVAL from 2^63 on
		return ErrFault
	}
	return err
}
