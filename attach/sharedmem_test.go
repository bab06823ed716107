package attach

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel makes an engine that touches a hole wait while it is punched.
func TestClientCannotPunchHolesInRings(t *testing.T) {
	mem, fd, err := newSharedMemory("test", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer unix.Munmap(mem)
	if flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err != nil || flags&immutable == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("without CAP_LINUX_IMMUTABLE, or before Linux 6.0: flags %#x, %v", flags, err)
		}
		t.Skip("needs CAP_LINUX_IMMUTABLE and Linux 6.0")
	}
	mem[5] = 1
	client, err := unix.Mmap(fd, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(client)
	client[6] = 2
	const how = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(fd, how, 0, 1<<16); err != unix.EPERM {
		t.Errorf("punching a hole: %v", err)
	}
	if err := unix.Madvise(client, unix.MADV_REMOVE); err != unix.EPERM {
		t.Errorf("punching a hole through the client's mapping: %v", err)
	}
	if client[5] != 1 || mem[6] != 2 {
		t.Errorf("contents %v and %v", client[5:7], mem[5:7])
	}
}
