package attach

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A peer is the process that opened a connection.
type peer struct {
	PID   int // 0 in a PID namespace that is not visible here
	UID   uint32
	Group int // its process group; 0 if PID is 0
	pidfd int // -1 if there is none
}

// soPeerPIDFD is SO_PEERPIDFD (Linux 6.5). Unlike a PID, the descriptor never refers to another
// process.
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
	if p.PID != 0 {
		p.Group, _ = unix.Getpgid(p.PID) // it may have ended
	}
	return p, nil
}

func (p *peer) close() {
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// privileged reports whether the client is an operator: root or the daemon's own user. Operators
// may do what the kernel requires CAP_NET_RAW for.
func (p *peer) privileged() bool { return p.UID == 0 || int(p.UID) == os.Geteuid() }
