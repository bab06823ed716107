package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// What the packet and udp links share: many super-packets in one system call, each
// gathered from where its parts lie, or scattered to buffers that are used again.
//
// A super-packet stands for consecutive packets of equal length of which the last may
// be shorter: First and Middle, or Middle to Last, of a message. The kernel carries it
// as one through the stack, and cuts it where it must.

const (
	// maxSegments bounds the packets of a super-packet. The kernel allows a UDP socket 64.
	maxSegments = 64

	// A system call moves so many super-packets, or fewer where they are long: more
	// bytes than the processor's cache holds are better moved in two calls, and the
	// receiver works on the first half while the second is sent.
	sendMessages    = 32
	sendBytes       = 512 << 10
	receiveMessages = 32
	receiveLong     = 8        // messages, once they were found to be longer than
	longMessage     = 16 << 10 // bytes on average

	// receiveTries bounds how often a Receive asks again when it had to drop all that came.
	receiveTries = 4

	// sendBatch is how many frames one Send should be given: some super-packets full.
	sendBatch = 256

	// maxPieces bounds what one message is gathered from; the kernel's bound is 1024.
	maxPieces = 512

	// maxSuperPacket bounds the length of a super-packet from Ethernet header to ICRC. Linux
	// has devices segment what is shorter than GSO_LEGACY_MAX_SIZE, 65536 bytes; longer ones,
	// which IPv6 would allow, it cuts itself, at a quarter of the speed.
	maxSuperPacket = 65535

	// copyLen bounds the packets that are copied, BTH to pad. It costs less than having
	// the kernel gather them; and what a program changes while it is sent, as one does
	// that hands out a counter by RDMA READ, cannot come to disagree with its ICRC.
	// Longer ones can: they are lost then, and sent again.
	copyLen = 512

	// tailLen is what can follow a payload: pad and ICRC.
	tailLen = 3 + packet.ICRCLen
)

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	n uint32 // bytes, set by the kernel
	_ uint32
}

// sendmmsg sends messages without blocking and returns how many went. An error is that
// of the first message, and none went then.
func sendmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
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

// recvmmsg receives what is there, without blocking. None and no error means nothing.
func recvmmsg(fd int, msgs []mmsghdr) (int, unix.Errno) {
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])),
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

// setBuffers asks for large socket buffers, beyond the system's limit where that is
// allowed, so that a burst of the peer's window fits.
func setBuffers(fd, receive, send int) {
	set := func(force, plain, n int) {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, n)
		}
	}
	set(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive)
	set(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, send)
}
