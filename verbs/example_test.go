package verbs_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// check ends an example that fails.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// The fabric takes the place of a daemon here. A program that uses the daemon needs no WithSocket.
func ExampleOpen() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	socket := verbs.WithSocket(fabric.Socket())

	ctx := context.Background()
	devices, err := verbs.Devices(ctx, socket)
	check(err)
	for _, d := range devices {
		fmt.Println(d.Name, d.State)
	}
	nic, err := verbs.Open(ctx, "nic0", socket)
	check(err)
	defer nic.Close()
	port, err := nic.QueryPort(ctx)
	check(err)
	fmt.Println("path MTU", port.ActiveMTU)
	// Output:
	// nic0 ACTIVE
	// nic1 ACTIVE
	// path MTU 4096
}

// The NIC maps the memory of a Buffer. Other memory can be registered too; it is slower.
func ExamplePD_RegMR() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()

	ctx := context.Background()
	nic := fabric.Open(0)
	pd, err := nic.AllocPD(ctx)
	check(err)
	buf, err := nic.AllocBuffer(1 << 20)
	check(err)
	mr, err := pd.RegMR(ctx, buf.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	check(err)
	fmt.Println(mr.Length(), mr.Mapped())
	check(mr.Close(ctx))
	// Output: 1048576 true
}

// Each side creates a queue pair and sends its Info to the other, over TCP for example.
func ExampleQP_Connect() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()

	ctx := context.Background()
	var qps [2]*verbs.QP
	var infos [2]verbs.Info
	for i := range 2 {
		nic := fabric.Open(i)
		pd, err := nic.AllocPD(ctx)
		check(err)
		cq, err := nic.CreateCQ(ctx, 64, nil)
		check(err)
		qps[i], err = pd.CreateQP(ctx, verbs.QPInitAttr{
			QPType: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
		})
		check(err)
		infos[i], err = qps[i].Info(ctx, verbs.AnyGID)
		check(err)
	}
	check(qps[0].Connect(ctx, infos[1], verbs.DefaultConnectOptions()))
	check(qps[1].Connect(ctx, infos[0], verbs.DefaultConnectOptions()))
	attr, err := qps[0].Query(ctx)
	check(err)
	fmt.Println(attr.QPState, "path MTU", attr.PathMTU)
	// Output: RTS path MTU 4096
}

func ExampleQP_PostSend_send() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	check(y.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{y.MR.SGE(0, 64)}}))
	n := copy(x.Buf, "hello")
	check(x.PostSend(verbs.SendWR{
		WRID: 2, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR.SGE(0, n)},
	}))
	wc := y.Completion()
	fmt.Printf("%s: %s\n", wc.Opcode, y.Buf[:wc.ByteLen])
	fmt.Println(x.Completion().Opcode)
	// Output:
	// RECV: hello
	// SEND
}

// The peer's program does not take part in an RDMA WRITE.
func ExampleQP_PostSend_write() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	n := copy(x.Buf, "written")
	check(x.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR.SGE(0, n)},
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
	}))
	x.Completion()
	fmt.Printf("%s\n", y.Buf[:n])
	// Output: written
}

func ExampleQP_PostSend_read() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	n := copy(y.Buf, "read from the peer")
	check(x.PostSend(verbs.SendWR{
		Opcode: verbs.WRRDMARead, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR.SGE(0, n)},
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(),
	}))
	x.Completion()
	fmt.Printf("%s\n", x.Buf[:n])
	// Output: read from the peer
}

// An atomic operation works on eight bytes of the peer and returns their previous value. NICs keep
// the number in the byte order of the host.
func ExampleQP_PostSend_atomic() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	binary.NativeEndian.PutUint64(y.Buf, 40)
	check(x.PostSend(verbs.SendWR{
		Opcode: verbs.WRAtomicFetchAndAdd, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{x.MR.SGE(0, 8)},
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey(), CompareAdd: 2,
	}))
	x.Completion()
	fmt.Println("was", binary.NativeEndian.Uint64(x.Buf), "is", binary.NativeEndian.Uint64(y.Buf))
	// Output: was 40 is 42
}

// Wait blocks until there is a completion; Poll takes what is there.
func ExampleCQ_Wait() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	x, y := fabric.Connected(verbstest.EndpointConfig{})

	for i := range uint64(3) {
		check(x.PostSend(verbs.SendWR{
			WRID: i, Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled | verbs.SendInline, Inline: []byte{1},
			RemoteAddr: y.MR.Addr() + i, RKey: y.MR.RKey(),
		}))
	}
	wcs := make([]verbs.WC, 16)
	for completed := 0; completed < 3; {
		check(x.CQ.Wait(context.Background()))
		n, err := x.CQ.Poll(wcs)
		check(err)
		for _, wc := range wcs[:n] {
			check(wc.Err())
			fmt.Println("work request", wc.WRID, wc.Status)
		}
		completed += n
	}
	// Output:
	// work request 0 success
	// work request 1 success
	// work request 2 success
}

// Queue pairs of one PD can share a receive queue.
func ExamplePD_CreateSRQ() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	ctx := context.Background()
	x, y := fabric.Endpoint(0, verbstest.EndpointConfig{}), fabric.Endpoint(1, verbstest.EndpointConfig{})

	srq, err := y.PD.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 64, MaxSGE: 1})
	check(err)
	qp, err := y.PD.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, SRQ: srq})
	check(err)
	info, err := qp.Info(ctx, verbs.AnyGID)
	check(err)
	check(x.Connect(ctx, info, verbs.DefaultConnectOptions()))
	check(qp.Connect(ctx, x.Info, verbs.DefaultConnectOptions()))

	check(srq.PostRecv(verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{y.MR.SGE(0, 64)}}))
	check(x.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendInline, Inline: []byte("shared")}))
	wc := y.Completion()
	fmt.Printf("receive %d: %s\n", wc.WRID, y.Buf[:wc.ByteLen])
	// Output: receive 7: shared
}

// A datagram goes to the address of an AH. The receive buffer begins with the GRH, from which the
// receiver makes the address for its reply.
func ExampleQP_ToDatagram() {
	fabric, err := verbstest.NewFabric()
	check(err)
	defer fabric.Close()
	ctx := context.Background()
	ud := verbstest.EndpointConfig{Type: verbs.UD}
	x, y := fabric.Endpoint(0, ud), fabric.Endpoint(1, ud)
	const qkey = 0x11111111
	check(x.ToDatagram(ctx, qkey))
	check(y.ToDatagram(ctx, qkey))

	check(y.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{y.MR.SGE(0, verbs.GRHLen+64)}}))
	n := copy(x.Buf, "datagram")
	check(x.PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, SGList: []verbs.SGE{x.MR.SGE(0, n)},
		AH: x.AH(y.Info.GID), RemoteQPN: y.Info.QPN, RemoteQKey: qkey,
	}))
	wc := y.Completion()
	reply, err := y.Context.AHAttrFromWC(ctx, &wc, y.Buf)
	check(err)
	fmt.Printf("%s from %v\n", y.Buf[verbs.GRHLen:wc.ByteLen], reply.GRH.DGID.Addr())
	// Output: datagram from 192.0.2.1
}

func ExampleQP_AttachMcast() {
	fabric, err := verbstest.NewFabric(verbstest.WithNICs(3))
	check(err)
	defer fabric.Close()
	ctx := context.Background()
	const qkey = 0x11111111
	group := verbs.GroupGID(netip.MustParseAddr("239.1.2.3"))
	ud := verbstest.EndpointConfig{Type: verbs.UD}
	sender := fabric.Endpoint(0, ud)
	members := []*verbstest.Endpoint{fabric.Endpoint(1, ud), fabric.Endpoint(2, ud)}
	check(sender.ToDatagram(ctx, qkey))
	for _, m := range members {
		check(m.ToDatagram(ctx, qkey))
		check(m.AttachMcast(ctx, group))
		check(m.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{m.MR.SGE(0, verbs.GRHLen+64)}}))
	}

	n := copy(sender.Buf, "to all")
	check(sender.PostSend(verbs.SendWR{
		Opcode: verbs.WRSend, SGList: []verbs.SGE{sender.MR.SGE(0, n)},
		AH: sender.AH(group), RemoteQPN: verbs.MulticastQPN, RemoteQKey: qkey,
	}))
	for _, m := range members {
		wc := m.Completion()
		fmt.Printf("%s: %s\n", m.Context.Device(), m.Buf[verbs.GRHLen:wc.ByteLen])
	}
	// Output:
	// nic1: to all
	// nic2: to all
}
