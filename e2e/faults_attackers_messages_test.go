package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// dialSilent returns a socket that has said hello. Its replies are not read.
func dialSilent() (*net.UnixConn, error) {
	c, err := net.Dial("unixpacket", control.SocketPath(""))
	if err != nil {
		return nil, err
	}
	sock := c.(*net.UnixConn)
	return sock, control.Write(sock, abi.Message(nil, abi.Header{Version: abi.Version, Op: abi.OpHello}, abi.HelloRequest{}))
}

// strangeFiles returns descriptors of many kinds, none of which is memory to register.
func strangeFiles() (fds []int) {
	for _, name := range []string{"/dev/zero", "/dev/null", "/dev/full", "/proc/self/maps", "/proc/self/mem", "/tmp", "/proc"} {
		for _, flags := range []int{unix.O_RDWR, unix.O_RDONLY, unix.O_PATH} {
			if fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
				fds = append(fds, fd)
			}
		}
	}
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		log.Fatal(err)
	}
	fds = append(fds, pair[:]...)
	fds = append(fds, must(unix.Eventfd(0, unix.EFD_CLOEXEC)), must(unix.EpollCreate1(unix.EPOLL_CLOEXEC)),
		must(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)))
	for _, size := range []int64{0, 1, 4096, 1 << 20, 1 << 40} {
		for _, seals := range []int{0, unix.F_SEAL_SHRINK, unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE, unix.F_SEAL_SEAL} {
			fd := must(unix.MemfdCreate("attack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
			if err := unix.Ftruncate(fd, size); err != nil {
				log.Fatal(err)
			}
			unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			fds = append(fds, fd)
		}
	}
	return fds
}

// attackWithMessages sends messages with random contents and descriptors, to which it does not
// listen, and changes the sizes of the files behind the descriptors.
func attackWithMessages() {
	seed := uint64(time.Now().UnixNano())
	fmt.Printf("seed %d\n", seed)
	files := strangeFiles()
	for i := range uint64(8) {
		go func() {
			r := rand.New(rand.NewPCG(seed, i))
			for {
				sock, err := dialSilent()
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				go discard(sock)
				if r.IntN(4) > 0 {
					control.Write(sock, abi.Message(nil, abi.Header{Version: abi.Version, Op: abi.OpOpenDevice}, abi.OpenDeviceRequest{}))
					control.Write(sock, abi.Message(nil, abi.Header{Version: abi.Version, Op: abi.OpAllocPD}))
				}
				for range r.IntN(1000) {
					if err := sendRandom(r, sock, files); err != nil {
						break
					}
					achieved.Add(1)
				}
				sock.Close()
			}
		}()
	}
	go func() {
		r := rand.New(rand.NewPCG(seed, 99))
		for {
			unix.Ftruncate(files[r.IntN(len(files))], []int64{0, 4096, 1 << 20}[r.IntN(3)])
			time.Sleep(time.Millisecond)
		}
	}()
	holdAttack()
}

// discard reads replies and closes their descriptors.
func discard(sock *net.UnixConn) {
	buf := make([]byte, abi.MaxMessage)
	for {
		p, err := control.Read(sock, buf)
		if err != nil && p.Header.Op == 0 {
			return
		}
		p.CloseFDs()
	}
}

// sendRandom sends a message whose fields are plausible, random or extreme.
func sendRandom(r *rand.Rand, sock *net.UnixConn, files []int) error {
	op := uint16(r.IntN(100))
	length := []int{0, 8, 16, 24, 32, 40, 48, 64, 72, 80, 104, 200, 4096}[r.IntN(13)]
	body := make([]byte, length)
	for i := 0; i+4 <= length; i += 4 {
		v := uint32(r.IntN(8))
		switch r.IntN(8) {
		case 0:
			v = r.Uint32()
		case 1:
			v = 1 << r.IntN(32)
		case 2:
			v = 4096
		}
		binary.LittleEndian.PutUint32(body[i:], v)
	}
	if r.IntN(3) == 0 { // a registration with a chance to succeed
		op, body = abi.OpRegMR, abi.Append(nil, abi.RegMRRequest{PD: 1, Memory: uint32(r.IntN(5)), Access: uint32(r.IntN(16)),
			Length: 1 << r.IntN(44), Offset: uint64(r.IntN(3)) * 4096, Address: r.Uint64() >> r.IntN(64)})
	}
	h := abi.Header{Version: abi.Version, Op: op, Tag: r.Uint64()}
	var fds []int
	if r.IntN(2) == 0 {
		fds = append(fds, files[r.IntN(len(files))])
	}
	if h.FDs = uint32(len(fds)); r.IntN(20) == 0 {
		h.FDs = r.Uint32()
	}
	msg := abi.Message(nil, h, body)
	if r.IntN(200) == 0 {
		msg[r.IntN(len(msg))] ^= 1 << r.IntN(8)
	}
	if r.IntN(1000) == 0 {
		msg = msg[:r.IntN(len(msg))]
	}
	sock.SetWriteDeadline(time.Now().Add(time.Second))
	return control.Write(sock, msg, fds...)
}

// attackWithRingContents writes random bytes to the rings and doorbells of contexts, again and
// again as the daemon closes them.
func attackWithRingContents() {
	seed := uint64(time.Now().UnixNano())
	fmt.Printf("seed %d\n", seed)
	for i := range uint64(4) {
		go func() {
			r := rand.New(rand.NewPCG(seed, i))
			for {
				overwriteRings(r)
			}
		}()
	}
	holdAttack()
}

// overwriteRings opens a context with queues and overwrites what it shares with the daemon, until
// the daemon closes it or for a moment.
func overwriteRings(r *rand.Rand) {
	c, err := dialAttack()
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	defer c.Close()
	var shared [][]byte
	doorbell := -1
	call := func(reply any, op uint16, want int, body ...any) bool {
		p, err := c.Call(context.Background(), control.Request{Name: "attack", Op: op, Body: body, Reply: reply, Want: want})
		for i, fd := range p.FDs {
			if op == abi.OpOpenDevice && i == 1 {
				doorbell = must(unix.Dup(fd))
			}
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Size > 0 {
				if m, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
					shared = append(shared, m)
				}
			}
		}
		p.CloseFDs()
		return err == nil
	}
	defer func() {
		for _, m := range shared {
			unix.Munmap(m)
		}
		unix.Close(doorbell)
	}()
	var pd abi.HandleReply
	var cq abi.CreateCQReply
	if !call(nil, abi.OpOpenDevice, 4, abi.OpenDeviceRequest{}) || !call(&pd, abi.OpAllocPD, 0) ||
		!call(&cq, abi.OpCreateCQ, 1, abi.CreateCQRequest{Entries: 16}) {
		return
	}
	for kind := range uint32(3) {
		call(nil, abi.OpCreateQP, 1, abi.CreateQPRequest{PD: pd.Handle, SendCQ: cq.Handle, RecvCQ: cq.Handle, Type: 2 + kind,
			Cap: abi.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2}})
	}
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end) && !c.Ended(); {
		m := shared[r.IntN(len(shared))]
		at := r.IntN(len(m)/4) * 4
		if r.IntN(2) == 0 {
			at = r.IntN(len(m)/4096)*4096 + r.IntN(64)*4 // perhaps a header, with the indices
		}
		v := r.Uint32()
		if r.IntN(2) == 0 {
			v >>= 24
		}
		binary.NativeEndian.PutUint32(m[at:], v)
		achieved.Add(1)
		if r.IntN(16) == 0 {
			unix.Write(doorbell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
}
