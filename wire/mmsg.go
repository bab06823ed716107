package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// The links through sockets move many packets with one system call, in two ways.
//
// One sendmmsg or recvmmsg moves several messages. Sent ones are gathered from where their parts
// lie; received ones go to buffers that are reused.
//
// One message can be a super-packet (UDP segmentation offload). It stands for consecutive packets
// of equal length, the last of which may be shorter: First and Middle packets, or Middle to Last,
// of one RDMA message. The kernel carries it through the stack as one packet, and segments it where
// it must.

const (
	// maxSegments is the number of packets in a super-packet that the kernel allows
	// (UDP_MAX_SEGMENTS).
	maxSegments = 64

	// A system call moves this many super-packets, or fewer if they are long: two calls are faster
	// than one that moves more bytes than fit in the processor's cache, and the receiver works on
	// the first half while the second is sent.
	txMessages     = 32
	txBytes        = 512 << 10
	rxMessages     = 32
	rxLongMessages = 8        // after a recvmmsg whose messages were longer than
	rxLongMessage  = 16 << 10 // bytes on average

	// txBatchSize is the number of frames that one Send should be given: some full super-packets.
	txBatchSize = 256

	// maxPieces is the number of pieces that one message is gathered from. The kernel's limit,
	// UIO_MAXIOV, is 1024.
	maxPieces = 512

	// maxSuperPacket is the length of the longest super-packet, from Ethernet header to ICRC. Linux
	// lets devices segment packets shorter than GSO_LEGACY_MAX_SIZE, 65536 bytes. It segments
	// longer ones, which IPv6 allows, itself, at a quarter of the speed.
	maxSuperPacket = 65535

	// copyLen is the length from BTH to pad up to which packets are copied. Copying costs less than
	// gathering. It also keeps the ICRC right if the program changes the payload during the send,
	// such as a counter that a peer reads by RDMA READ. A longer packet may leave with a wrong
	// ICRC; it is then lost and retransmitted.
	copyLen = 512

	// tailLen is the most bytes that follow a payload: pad and ICRC.
	tailLen = 3 + packet.ICRCLen
)

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	n uint32 // bytes, set by the kernel
	_ uint32
}

// Neither call waits, so both are raw: a long batch would otherwise look to Go's scheduler like a
// call that blocks. It would give the engine's P to another thread, and to notice such calls its
// monitor (sysmon) wakes up every 20 µs.

// sendmmsg sends messages without blocking and returns how many were sent. An error is the first
// message's; then none was sent.
func sendmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
			uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(n), 0
	}
}

// recvmmsg receives messages without blocking. It returns 0 and no error if there are none.
func recvmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
			uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			return int(n), 0
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, 0
		default:
			return 0, e
		}
	}
}

// setBuffers sets the sizes of a socket's buffers, beyond the system's limit if the process has
// CAP_NET_ADMIN.
func setBuffers(fd, receive, send int) {
	set := func(force, plain, n int) {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, n)
		}
	}
	set(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive)
	set(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, send)
}
