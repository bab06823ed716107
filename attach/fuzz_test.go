package attach

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// FuzzControl reads its input as a sequence of requests:
//
//	op u16, tag u8, version u8, descriptors u8, length of the body u16, body
//
// The upper four bits of descriptors are the number of descriptors that are sent; the lower four
// are added to it in the header. The kind of a descriptor depends on its position.
const requestHeaderLen = 7

func appendRequest(b []byte, op uint16, fds byte, body ...any) []byte {
	payload := abi.Append(nil, body...)
	b = binary.LittleEndian.AppendUint16(b, op)
	b = append(b, 1, abi.Version, fds<<4)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	return append(b, payload...)
}

// validSession returns the requests of a client that makes no mistake.
func validSession(gid [16]byte) []byte {
	b := appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{})
	b = appendRequest(b, abi.OpListDevices, 0)
	b = appendRequest(b, abi.OpOpenDevice, 0, abi.OpenDeviceRequest{})
	b = appendRequest(b, abi.OpQueryDevice, 0)
	b = appendRequest(b, abi.OpQueryPort, 0)
	b = appendRequest(b, abi.OpQueryGIDs, 0)
	b = appendRequest(b, abi.OpAllocPD, 0)                                                                            // 1
	b = appendRequest(b, abi.OpRegMR, 1, abi.RegMRRequest{PD: 1, Memory: abi.MemoryMapped, Access: 15, Length: 8192}) // 2
	b = appendRequest(b, abi.OpCreateChannel, 0)                                                                      // 3
	b = appendRequest(b, abi.OpCreateCQ, 0, abi.CreateCQRequest{Entries: 10, Channel: 3})                             // 4
	b = appendRequest(b, abi.OpCreateCQ, 0, abi.CreateCQRequest{Entries: 10, Flags: abi.CQOwnChannel})                // 5
	b = appendRequest(b, abi.OpCreateQP, 0, abi.CreateQPRequest{PD: 1, SendCQ: 4, RecvCQ: 5, Type: 2,
		Cap: abi.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 100}}) // 6
	a := abi.QPAttr{State: 1, PortNum: 1, AccessFlags: 15}
	b = appendRequest(b, abi.OpModifyQP, 0, abi.ModifyQPRequest{Handle: 6, Mask: 1 | 1<<3 | 1<<4 | 1<<5, Attr: a})
	a.State, a.PathMTU, a.DestQPN = 2, 3, 0x11
	a.AH = abi.AHAttr{DGID: gid, SGIDIndex: 1, PortNum: 1, IsGlobal: 1}
	b = appendRequest(b, abi.OpModifyQP, 0, abi.ModifyQPRequest{Handle: 6, Mask: 1 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20, Attr: a})
	a.State = 3
	b = appendRequest(b, abi.OpModifyQP, 0, abi.ModifyQPRequest{Handle: 6, Mask: 1 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<16, Attr: a})
	b = appendRequest(b, abi.OpQueryQP, 0, abi.HandleRequest{Handle: 6})
	b = appendRequest(b, abi.OpCreateAH, 0, abi.CreateAHRequest{PD: 1, AH: a.AH}) // 7
	b = appendRequest(b, abi.OpSnapshot, 0)
	for _, o := range []struct {
		op     uint16
		handle uint32
	}{
		{abi.OpDestroyAH, 7}, {abi.OpDestroyQP, 6}, {abi.OpDestroyCQ, 5}, {abi.OpDestroyCQ, 4},
		{abi.OpDestroyChannel, 3}, {abi.OpDeregMR, 2}, {abi.OpDeallocPD, 1},
	} {
		b = appendRequest(b, o.op, 0, abi.HandleRequest{Handle: o.handle})
	}
	return b
}

// deviceSession returns the requests of a client that uses device memory and a DMA buffer, and
// has memory held.
func deviceSession() []byte {
	b := appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{})
	b = appendRequest(b, abi.OpOpenDevice, 0, abi.OpenDeviceRequest{})
	b = appendRequest(b, abi.OpAllocPD, 0)                                               // 1
	b = appendRequest(b, abi.OpAllocDM, 0, abi.AllocDMRequest{Length: 100, LogAlign: 3}) // 2
	b = appendRequest(b, abi.OpQueryDM, 0, abi.HandleRequest{Handle: 2})
	b = appendRequest(b, abi.OpCopyToDM, 0, abi.CopyDMRequest{Handle: 2, Length: 8, Offset: 92}, uint64(1))
	b = appendRequest(b, abi.OpCopyFromDM, 0, abi.CopyDMRequest{Handle: 2, Length: 100})
	b = appendRequest(b, abi.OpRegMR, 0, abi.RegMRRequest{PD: 1, Memory: abi.MemoryDevice, Access: 32 | 15, Length: 50, Address: 2, Offset: 50}) // 3
	b = appendRequest(b, abi.OpRegMR, 1, abi.RegMRRequest{PD: 1, Memory: abi.MemoryDMABuf, Access: 15, Length: 4000, Offset: 100, IOVA: 4196})   // 4
	b = appendRequest(b, abi.OpQueryMR, 0, abi.HandleRequest{Handle: 4})
	b = appendRequest(b, abi.OpHoldMemory, 1) // 5
	for op, handle := range []uint32{2, 3, 4, 2, 5, 1} {
		op := []uint16{abi.OpFreeDM, abi.OpDeregMR, abi.OpDeregMR, abi.OpFreeDM, abi.OpReleaseMemory, abi.OpDeallocPD}[op]
		b = appendRequest(b, op, 0, abi.HandleRequest{Handle: handle})
	}
	return b
}

// FuzzControl sends arbitrary requests. The server must reply once to each, and must destroy all of
// the client's objects when the connection ends.
func FuzzControl(f *testing.F) {
	s, e := newStepped(f, Config{
		Limits: Limits{PDs: 8, CQs: 8, QPs: 8, MRs: 8, AHs: 8, Registered: 1 << 20, Rings: 1 << 20, Device: 1 << 16}})
	d, addr := e.Devices()[0], netip.MustParseAddr("192.0.2.1")
	valid := validSession(addr.As16())
	f.Add(valid)
	f.Add(valid[:len(valid)/2])
	f.Add(append(appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{}), valid...))
	f.Add(appendRequest(appendRequest(appendRequest(nil, abi.OpHello, 0, abi.HelloRequest{}), abi.OpOpenDevice, 0, abi.OpenDeviceRequest{}), abi.OpCreateQP, 15, uint64(1)))
	f.Add(deviceSession())
	f.Add(deviceSession()[:len(deviceSession())*2/3])
	now := int64(1)
	f.Fuzz(func(t *testing.T, requests []byte) {
		server, client := socketpair(t)
		defer client.Close()
		p, err := peerOf(server)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.budget.take(p.UID, connectionCost); err != nil {
			t.Fatal(err)
		}
		c := newConn(s, server, p)
		for len(requests) >= requestHeaderLen {
			var m control.Packet
			m, requests = nextRequest(requests)
			c.handle(&m)
			c.slowRequests.Wait()
			if n := countReplies(client); n != 1 {
				t.Fatalf("%d replies to %+v", n, m.Header)
			}
			now++
			e.Step(now)
		}
		c.cleanup()
		for range 3 {
			now++
			e.Step(now)
		}
		if snap := d.Snapshot(); len(snap.Contexts)+len(snap.QPs)+len(snap.CQs)+len(snap.MRs)+len(snap.DMs) != 0 {
			t.Fatalf("left behind: %+v", snap)
		}
	})
}

func nextRequest(requests []byte) (control.Packet, []byte) {
	n := min(int(binary.LittleEndian.Uint16(requests[5:])), len(requests)-requestHeaderLen)
	m := control.Packet{
		Header: abi.Header{Version: uint16(requests[3]), Op: binary.LittleEndian.Uint16(requests), Tag: uint64(requests[2])},
		Body:   requests[requestHeaderLen : requestHeaderLen+n],
	}
	for i := range requests[4] >> 4 {
		if fd := newDescriptor(int(i)); fd >= 0 {
			m.FDs = append(m.FDs, fd)
		}
	}
	m.Header.FDs = uint32(len(m.FDs)) + uint32(requests[4]&15)
	return m, requests[requestHeaderLen+n:]
}

func newDescriptor(position int) int {
	switch position % 4 {
	case 0:
		fd, _ := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		unix.Ftruncate(fd, 8192)
		return fd
	case 1:
		fd, _ := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
		return fd
	case 2:
		fd, _ := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
		return fd
	}
	fd, _ := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return fd
}

// countReplies reads the messages that the client has received, and returns their number.
func countReplies(client *net.UnixConn) (n int) {
	raw, err := client.SyscallConn()
	if err != nil {
		return -1
	}
	buf, oob := make([]byte, abi.MaxMessage), make([]byte, unix.CmsgSpace(abi.MaxFDs*4))
	raw.Control(func(fd uintptr) {
		for {
			k, oobn, _, _, err := unix.Recvmsg(int(fd), buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err != nil || k == 0 {
				return
			}
			n++
			msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
			for i := range msgs {
				fds, _ := unix.ParseUnixRights(&msgs[i])
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
	})
	return n
}

func socketpair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}
