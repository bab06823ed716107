package attach

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A peer is the process behind a connection: the one that called connect.
type peer struct {
	PID   int // 0 where it is in a PID namespace that we do not see
	UID   uint32
	pidfd int // -1 where there is none
}

// soPeerPIDFD is SO_PEERPIDFD, since Linux 6.5: unlike a PID it cannot come to mean another process.
const soPeerPIDFD = 77

func peerOf(sock *net.UnixConn) (p peer, err error) {
	p.pidfd = -1
	raw, err := sock.SyscallConn()
	if err != nil {
		return p, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if failed != nil {
			return
		}
		if n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPIDFD); err == nil {
			p.pidfd = n
		} else if n, err := unix.PidfdOpen(int(cred.Pid), 0); err == nil {
			p.pidfd = n
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return p, fmt.Errorf("peer credentials: %w", err)
	}
	p.PID, p.UID = int(cred.Pid), cred.Uid
	return p, nil
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// privileged reports whether the client may have what the kernel asks CAP_NET_RAW for: it is
// root's, or the daemon is its user's own.
func (p *peer) privileged() bool { return p.UID == 0 || int(p.UID) == os.Geteuid() }
