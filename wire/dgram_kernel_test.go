package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// kernelAt creates a Linux host at the far end of a dgram link: a namespace with a TAP interface,
// whose frames go through UDP datagrams as QEMU's do.
func kernelAt(t testing.TB, local, remote netip.AddrPort) *netnsHost {
	t.Helper()
	s := newHost(t, "tap0", 1)
	var fd int
	missing := false
	onThread(func() {
		var err error
		if err = netns.Set(s.ns); err == nil {
			fd, err = openTap(s.name)
		}
		if errors.Is(err, unix.ENOENT) && os.Getenv("CI") != "true" {
			t.Log("left out: this machine has no /dev/net/tun")
			missing = true
		} else if err != nil {
			t.Errorf("TAP interface: %v", err)
		}
	})
	if missing {
		t.SkipNow()
	}
	if t.Failed() {
		t.FailNow()
	}
	must(t, s.nl.LinkSetHardwareAddr(s.link(), vmMAC[:]))
	must(t, s.nl.LinkSetMTU(s.link(), 9000))
	for _, a := range []string{vmAddr.String() + "/24", vm6.String() + "/64"} {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		addr.Flags = unix.IFA_F_NODAD
		must(t, s.nl.AddrAdd(s.link(), addr))
	}
	must(t, s.nl.LinkSetUp(s.link()))
	udp, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
	must(t, err)
	tap := os.NewFile(uintptr(fd), "tap")
	t.Cleanup(func() { udp.Close(); tap.Close() })
	pump := func(read, write func([]byte) (int, error)) {
		b := make([]byte, 10000)
		for {
			n, err := read(b)
			if err == nil {
				write(b[:n])
			} else if ne, ok := err.(*net.OpError); !ok || !isRefused(ne) {
				return
			}
		}
	}
	go pump(tap.Read, udp.Write)
	go pump(udp.Read, tap.Write)
	return s
}

func isRefused(e *net.OpError) bool {
	sys, ok := e.Err.(*os.SyscallError)
	return ok && sys.Err == unix.ECONNREFUSED
}

func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], name)
	request.flags = unix.IFF_TAP | unix.IFF_NO_PI
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); e != 0 {
		return -1, e
	}
	return fd, nil
}

// inside runs f in the namespace of s.
func (s *netnsHost) inside(f func() error) {
	s.t.Helper()
	var err error
	onThread(func() {
		if err = netns.Set(s.ns); err == nil {
			err = f()
		}
	})
	must(s.t, err)
}

func TestDgramInteroperatesWithTheKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		newVethPair(t) // skips the test without root
	}
	ports := freePorts(t, 2)
	c := dgConfig
	c.Local, c.Remote = ports[0], ports[1]
	dg, err := NewDgramLink(c)
	must(t, err)
	vm := kernelAt(t, ports[1], ports[0])

	// A goroutine that receives, as an engine does.
	got := make(chan RxFrame, 16)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		var rx [8]RxFrame
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, _ := dg.Receive(0, rx[:])
			for _, f := range rx[:n] {
				f.Head = bytes.Clone(f.Head)
				got <- f
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	defer func() { close(stop); <-stopped; dg.Close() }()

	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("v6=", v6), func(t *testing.T) { exchangeWithKernel(t, dg, vm, v6, got) })
	}
}

// exchangeWithKernel makes the kernel resolve, ping and send to the link, and the link resolve and
// send to the kernel.
func exchangeWithKernel(t *testing.T, dg *DgramLink, vm *netnsHost, v6 bool, got <-chan RxFrame) {
	network, icmp, here, there := "udp4", "ip4:icmp", dgAddr, vmAddr
	ping := []byte{icmpEcho, 0, 0, 0, 0, 1, 0, 2, 'h', 'i'}
	putChecksum(ping[2:], ping, 0)
	if v6 {
		network, icmp, here, there = "udp6", "ip6:ipv6-icmp", dg6, vm6
		ping[0] = icmp6Echo // the kernel computes the checksum
	}
	path := &Path{Src: here, Dst: there, SrcPort: 0xc123, HopLimit: 64}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if err := dg.Resolve(ctx, path); err != nil || path.DstMAC != vmMAC {
		t.Fatalf("Resolve: %v, %x", err, path.DstMAC)
	}

	var udp *net.UDPConn
	var raw *net.IPConn
	vm.inside(func() (err error) {
		if udp, err = net.ListenUDP(network, &net.UDPAddr{IP: there.AsSlice(), Port: Port}); err == nil {
			raw, err = net.ListenIP(icmp, &net.IPAddr{IP: there.AsSlice()})
		}
		if v6 && err == nil {
			rc, _ := udp.SyscallConn()
			rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1) })
		}
		return err
	})
	defer udp.Close()
	defer raw.Close()
	udp.SetDeadline(time.Now().Add(waitTimeout))
	raw.SetDeadline(time.Now().Add(waitTimeout))

	// The kernel resolves the link's MAC, pings it, and receives the reply.
	if _, err := raw.WriteToIP(ping, &net.IPAddr{IP: here.AsSlice()}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10000)
	for {
		n, _, err := raw.ReadFromIP(b)
		if err != nil {
			t.Fatalf("no reply to a ping: %v", err)
		}
		if (b[0] == icmpEchoReply || b[0] == icmp6EchoReply) && string(b[8:n]) == "hi" {
			break
		}
	}

	// A socket receives a packet from the link.
	tx := frame(path, 1, bytes.Repeat([]byte("x"), 4096))
	want := sentBytes(&tx)
	mustSend(t, dg, 0, tx)
	n, from, err := udp.ReadFromUDPAddrPort(b)
	if err != nil || !bytes.Equal(b[:max(0, n-4)], want) || from != netip.AddrPortFrom(here, 0xc123) {
		t.Fatalf("the kernel received %d bytes from %v, %v", n, from, err)
	}

	// The link receives a packet from a socket, with a UDP checksum from the kernel. Its
	// Identification is unknown here, so the ICRC is right with IPv6 only.
	a := packet.Addressing{Src: there, Dst: here, SrcPort: Port}
	m := binary.LittleEndian.AppendUint32(bytes.Clone(want), packet.ICRCBytes(&a, want))
	if _, err := udp.WriteToUDPAddrPort(m, netip.AddrPortFrom(here, Port)); err != nil {
		t.Fatal(err)
	}
	select {
	case f := <-got:
		if !bytes.Equal(f.Head, want) || f.Src != there || v6 && f.BadICRC {
			t.Errorf("received %+v", f)
		}
	case <-time.After(waitTimeout):
		t.Errorf("no packet received; drops: %v", dg.counters.Drops)
	}
}
