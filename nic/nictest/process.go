package nictest

import (
	"os"

	"golang.org/x/sys/unix"

	"softroce/mrtable"
)

// ThisProcess opens this process as the NIC opens that of a client: by process_vm_readv, or by
// /proc/self/mem where the system lacks that, as qemu-user does.
func ThisProcess() (*mrtable.Process, error) {
	if _, err := unix.ProcessVMReadv(os.Getpid(), nil, nil, 0); err != unix.ENOSYS {
		return mrtable.OpenProcess(os.Getpid(), -1)
	}
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mrtable.OpenProcessMem(int(f.Fd()))
}
