package attach

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/mrtable"
)

// sharedMemory is newSharedMemory that accounts for the mapping. The mapping outlives the
// descriptor, which is for the client.
func (a *account) sharedMemory(name string, size int) (mem []byte, fd int, err error) {
	if err := a.take(pageCost(size)); err != nil {
		return nil, -1, err
	}
	mem, fd, err = newSharedMemory(name, size)
	if err != nil {
		a.release(pageCost(size))
	}
	return mem, fd, err
}

// newSharedMemory allocates size bytes that a client can map: a memfd that no process can shrink or
// grow, whose pages are allocated on first access.
func newSharedMemory(name string, size int) (mem []byte, fd int, err error) {
	fd, err = unix.MemfdCreate("softroce-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("%s: memfd_create: %w", name, err)
	}
	mem, err = mapSealed(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("%s: %w", name, err)
	}
	return mem, fd, nil
}

func pageCost(size int) amounts { return amounts{mappings: 1, memory: uint64(size)} }

// unmap releases what sharedMemory returned.
func (a *account) unmap(mem []byte) {
	unmapShared(mem)
	a.release(pageCost(len(mem)))
}

func mapSealed(fd, size int) ([]byte, error) {
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64((size+page-1)/page*page)); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	forbidHoles(fd)
	// unix.Mmap and unix.Munmap share a lock, with which they unmap.
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// forbidHoles makes the kernel refuse to punch holes in a memfd that no client has yet: page faults
// of the engine would wait for the client that punches one. F_SEAL_FUTURE_WRITE, which registered
// memory gets, would keep the client from mapping it. An immutable file can be mapped and written
// through its descriptors. This needs CAP_LINUX_IMMUTABLE and Linux 6.0; without them the file
// remains as it is.
func forbidHoles(fd int) { unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, immutable) }

// unmapShared unmaps what newSharedMemory returned. A ring may have a gigabyte.
func unmapShared(mem []byte) { mrtable.Unmap(mem, pageSize) }

// checkAccess returns an error unless a client opened the descriptor in one of the modes (O_RDONLY,
// O_WRONLY or O_RDWR). A descriptor that was opened with O_PATH names a file without any right to
// it.
func checkAccess(fd int, modes ...int) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_PATH != 0 || !slices.Contains(modes, flags&unix.O_ACCMODE) {
		return errorf(syscall.EBADF, "the descriptor does not grant the required access to its file")
	}
	return nil
}
