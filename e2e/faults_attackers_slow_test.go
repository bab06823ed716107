package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/verbs"
)

// slowSize is the size of memory whose pages never arrive.
const slowSize = 1 << 20

// onDemand leaves the pages of a region alone until they are accessed.
const onDemand = verbs.Access(ib.AccessOnDemand)

// attackWithSlowMemory sends from memory whose pages never arrive.
func attackWithSlowMemory() { sendBetween(slowFile(), nil) }

// attackWithSlowTarget receives into memory whose pages never arrive.
func attackWithSlowTarget() { sendBetween(nil, slowFile()) }

// attackWithSlowFaults is attackWithSlowMemory as the daemon's user, whose memory the daemon
// accesses in another way.
func attackWithSlowFaults() { sendBetween(slowFaults(), nil) }

// sendBetween posts an RDMA WRITE from one memory to another. Nil means a buffer.
func sendBetween(from, to []byte) {
	x, y := connectedAttackEndpoints(slowSize)
	register := func(e *attackEndpoint, mem []byte) *verbs.MR {
		if mem == nil {
			return e.mr
		}
		return must(e.pd.RegMR(context.Background(), mem, allAccess|onDemand))
	}
	source, target := register(x, from), register(y, to)
	fmt.Print(inProgress) // later, this process may be blocked, too
	if err := x.write(source, target, 64<<10); err != nil {
		log.Fatal(err)
	}
	select {}
}

// attackWithSlowRegistration registers memory whose pages never arrive.
func attackWithSlowRegistration() {
	mem := slowFile()
	var ends []*attackEndpoint
	for range 8 {
		ends = append(ends, openAttackEndpoint("softroce0", 4096))
	}
	fmt.Print(inProgress) // later, this process may be blocked, too
	for _, e := range ends {
		go e.pd.RegMR(context.Background(), mem, allAccess)
	}
	select {}
}

// slowFile mounts a file system in this process and returns a mapping of a file whose reads it
// never answers. A page fault waits until this process ends. The process, which begins as root in a
// mount namespace of its own, becomes the attacker.
func slowFile() []byte {
	uid := must(strconv.Atoi(os.Getenv(attackUserEnv)))
	dev := must(unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0))
	// A mount that covers a file is a file. Only this namespace sees it.
	const path = "/etc/hostname"
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d", dev, unix.S_IFREG|0o666, uid, uid)
	for _, err := range []error{
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("attack", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options),
		// The process must be able to open its own /proc/self/mem.
		syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid), unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	go serveSlowFile(dev, uid)
	fd := must(unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != slowSize { // the kernel asks for the size
		log.Fatalf("the file has %d bytes, %v", st.Size, err)
	}
	mem := must(unix.Mmap(fd, 0, slowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE))
	unix.Close(fd) // learns that there is no FUSE_FLUSH, whose answer would be missing when the process ends
	return mem
}

// Requests and lengths of <linux/fuse.h>.
const (
	fuseForget  = 2
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseInit    = 26

	fuseBufferSize = 1<<20 + 4096
	fuseHeaderSize = 16
	fuseInitSize   = 64
	fuseAttrSize   = 104
	fuseOpenSize   = 16
)

// serveSlowFile answers every request but reads.
func serveSlowFile(dev, uid int) {
	le := binary.LittleEndian
	buf := make([]byte, fuseBufferSize)
	for {
		n, err := unix.Read(dev, buf)
		if err != nil || n < 40 {
			log.Fatalf("/dev/fuse: %d bytes, %v", n, err)
		}
		var body []byte
		failed := int32(0)
		switch op := le.Uint32(buf[4:]); op {
		case fuseForget, fuseRead:
			continue
		case fuseInit:
			body = make([]byte, fuseInitSize)
			le.PutUint32(body, 7)      // major version
			le.PutUint32(body[4:], 31) // minor version
			le.PutUint32(body[20:], 4096)
		case fuseGetattr:
			body = make([]byte, fuseAttrSize)
			le.PutUint64(body, 3600) // seconds that the attributes are valid
			le.PutUint64(body[16:], 1)
			le.PutUint64(body[24:], slowSize)
			le.PutUint32(body[76:], unix.S_IFREG|0o666)
			le.PutUint32(body[80:], 1)
			le.PutUint32(body[84:], uint32(uid))
			le.PutUint32(body[88:], uint32(uid))
		case fuseOpen:
			body = make([]byte, fuseOpenSize)
		default:
			failed = -int32(unix.ENOSYS)
		}
		reply := make([]byte, fuseHeaderSize, fuseHeaderSize+len(body))
		le.PutUint32(reply, uint32(cap(reply)))
		le.PutUint32(reply[4:], uint32(failed))
		copy(reply[8:], buf[8:16]) // the request's number
		if _, err := unix.Write(dev, append(reply, body...)); err != nil {
			log.Fatal(err)
		}
	}
}

// slowFaults returns memory whose page faults are not handled until this process ends.
func slowFaults() []byte { return must(nictest.NewPages(slowSize / nictest.PageSize)).Bytes }
