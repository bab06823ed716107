package nic_test

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/wire"
)

// BenchmarkWire is the whole way of a message between two NICs in network namespaces that a veth
// pair of MTU 9000 connects, on one thread. The kernel copies the memory of the clients, as it does
// that of most C programs. cpu-s/GiB is processor time, which a busy machine changes little.
func BenchmarkWire(b *testing.B) {
	skipWithoutRoot(b)
	for _, op := range []struct {
		name string
		code ib.WROpcode
	}{{"write", ib.WRRDMAWrite}, {"read", ib.WRRDMARead}} {
		for _, size := range []struct {
			name         string
			bytes, depth int
		}{{"64KiB", 64 << 10, 32}, {"1MiB", 1 << 20, 4}} {
			for _, link := range []string{"packet", "udp"} {
				b.Run(op.name+"/"+size.name+"/"+link, func(bench *testing.B) {
					w := newTestFabric(bench)
					a, b := w.wireNICs(link)
					x, y := connected(w.client(a), w.client(b), smallCaps)
					x.useCopiedMemory()
					y.useCopiedMemory()
					start := processorTime(bench)
					benchmarkPair(bench, x, y, op.code, size.bytes, size.depth)
					used := processorTime(bench) - start
					bench.ReportMetric(used.Seconds()*(1<<30)/float64(bench.N)/float64(size.bytes), "cpu-s/GiB")
				})
			}
		}
	}
}

// BenchmarkWireWrite8BAlone is the same for one short message at a time, with its ACK. Engine and
// client never wait for a processor.
func BenchmarkWireWrite8BAlone(b *testing.B) {
	skipWithoutRoot(b)
	for _, link := range []string{"packet", "udp"} {
		b.Run(link, func(bench *testing.B) {
			w := newTestFabric(bench)
			a, b := w.wireNICs(link)
			x, y := connected(w.client(a), w.client(b), smallCaps)
			benchmarkPair(bench, x, y, ib.WRRDMAWrite, 8, 1)
		})
	}
}

func skipWithoutRoot(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("network namespaces require root")
	}
}

// processorTime returns what the process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	check(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wireNICs adds NICs at the ends of a veth pair.
func (w *testFabric) wireNICs(kind string) (a, b *nic.Device) {
	left, right := newNamespace(w.t), newNamespace(w.t)
	inNamespace(w.t, left, func() {
		check(w.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0", MTU: 9000},
			PeerName: "wire0", PeerMTU: 9000, PeerNamespace: netlink.NsFd(right)}))
	})
	a, b = w.wireNIC(left, kind, 1), w.wireNIC(right, kind, 2)
	for _, d := range []*nic.Device{a, b} {
		for deadline := time.Now().Add(10 * time.Second); !d.Interface().Up() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	return a, b
}

func newNamespace(t testing.TB) (ns netns.NsHandle) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		ns, err = netns.New()
		done <- err
	}()
	check(t, <-done)
	t.Cleanup(func() { ns.Close() })
	return ns
}

func inNamespace(t testing.TB, ns netns.NsHandle, f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			f()
		}
		done <- err
	}()
	check(t, <-done)
}

func (w *testFabric) wireNIC(ns netns.NsHandle, kind string, host byte) (d *nic.Device) {
	inNamespace(w.t, ns, func() {
		dev, err := netlink.LinkByName("wire0")
		check(w.t, err)
		check(w.t, netlink.AddrAdd(dev, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, host), Mask: net.CIDRMask(24, 32)}}))
		check(w.t, netlink.LinkSetUp(dev))
		iface, err := wire.OpenNetdev("wire0")
		check(w.t, err)
		w.t.Cleanup(func() { iface.Close() })
		var link wire.Link
		if kind == "udp" {
			link, err = wire.NewUDPLink(iface)
		} else {
			link, err = wire.NewPacketLink(iface)
		}
		check(w.t, err)
		d, err = w.engine.AddDevice(nic.DeviceConfig{Name: string('a' + rune(host)), Link: link, Iface: iface})
		check(w.t, err)
	})
	return d
}
