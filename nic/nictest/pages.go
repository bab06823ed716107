package nictest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of userfaultfd(2), from <linux/userfaultfd.h>.
const (
	uffdAPI      = 0xc018aa3f // UFFDIO_API
	uffdRegister = 0xc020aa00 // UFFDIO_REGISTER
	uffdZeropage = 0xc020aa04 // UFFDIO_ZEROPAGE

	uffdVersion = 0xaa
	uffdMissing = 1 // UFFDIO_REGISTER_MODE_MISSING
)

// PageSize is the size of a page of Pages.
const PageSize = 4096

// Pages is memory of this process whose pages are missing until Serve provides them. Each access to
// a missing page waits, as for a file system in user space that does not answer.
type Pages struct {
	Bytes []byte
	fd    uintptr
}

// NewPages returns n missing pages. The kernel permits it to root, and to others as
// vm.unprivileged_userfaultfd says.
func NewPages(n int) (*Pages, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	mem, err := unix.Mmap(-1, 0, n*PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		unix.Close(int(fd))
		return nil, err
	}
	p := &Pages{mem, fd}
	if err = p.request(uffdAPI, uffdVersion, 0, 0); err == nil {
		err = p.request(uffdRegister, p.Address(), uint64(len(mem)), uffdMissing, 0)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pages) request(number uintptr, arg ...uint64) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, p.fd, number, uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
		return errno
	}
	return nil
}

// Address returns the address of the first byte.
func (p *Pages) Address() uint64 { return uint64(uintptr(unsafe.Pointer(&p.Bytes[0]))) }

// Serve provides the missing ones of n pages from page first on, filled with zeros.
func (p *Pages) Serve(first, n int) error {
	for i := range n {
		err := p.request(uffdZeropage, p.Address()+uint64((first+i)*PageSize), PageSize, 0, 0)
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	return nil
}

// Close ends all waits, and makes the memory inaccessible. Its addresses are not used again: a copy
// that another thread begins late must not touch other memory.
func (p *Pages) Close() {
	unix.Close(int(p.fd))
	unix.Madvise(p.Bytes, unix.MADV_DONTNEED)
	unix.Mprotect(p.Bytes, unix.PROT_NONE)
}
