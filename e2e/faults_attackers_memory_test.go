package e2e

import (
	"context"
	"fmt"
	"log"
	"os"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// allAccess are the rights of an attacker's memory.
const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// An attackEnd is a queue pair of an attacker.
type attackEnd struct {
	*verbs.QP
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
}

// openEnd opens a device and registers a buffer.
func openEnd(device string, buffer int) *attackEnd {
	ctx := context.Background()
	c := must(verbs.Open(ctx, device))
	e := &attackEnd{pd: must(c.AllocPD(ctx)), cq: must(c.CreateCQ(ctx, 4096, nil))}
	e.mr = must(e.pd.RegMR(ctx, must(c.AllocBuffer(buffer)).Bytes(), allAccess))
	return e
}

// newQP adds a queue pair to an end.
func (e *attackEnd) newQP() *attackEnd {
	f := *e
	f.QP = must(e.pd.CreateQP(context.Background(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	return &f
}

// connectEnds connects two queue pairs.
func connectEnds(x, y *attackEnd) {
	ctx := context.Background()
	xi, yi := must(x.Info(ctx, verbs.AnyGID)), must(y.Info(ctx, verbs.AnyGID))
	for _, err := range []error{x.Connect(ctx, yi, verbs.DefaultConnectOptions()), y.Connect(ctx, xi, verbs.DefaultConnectOptions())} {
		if err != nil {
			log.Fatal(err)
		}
	}
}

// connectedEnds returns connected queue pairs on the two NICs.
func connectedEnds(buffer int) (x, y *attackEnd) {
	x, y = openEnd("softroce0", buffer).newQP(), openEnd("softroce1", buffer).newQP()
	connectEnds(x, y)
	return x, y
}

// write posts an RDMA WRITE of n bytes.
func (e *attackEnd) write(from, to *verbs.MR, n int) error {
	return e.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.SGE(0, n)}, RemoteAddr: to.Addr(), RKey: to.RKey()})
}

// attackWithBandwidth keeps 64 queue pairs busy with large messages.
func attackWithBandwidth() {
	const size = 32 << 20
	a, b := openEnd("softroce0", size), openEnd("softroce1", size)
	var from []*attackEnd
	for range 64 {
		x, y := a.newQP(), b.newQP()
		connectEnds(x, y)
		from = append(from, x)
	}
	fmt.Print(inProgress)
	var wc [64]verbs.WC
	for {
		for _, x := range from {
			x.write(x.mr, b.mr, size) // an error means that the queue is full
		}
		if err := a.cq.Wait(context.Background()); err != nil {
			log.Fatal(err)
		}
		for must(a.cq.Poll(wc[:])) == len(wc) {
		}
	}
}

// attackWithOneFile registers the same memory again and again.
func attackWithOneFile() {
	const size, times = 64 << 20, 4096
	c := must(openAttack())
	fd := must(unix.MemfdCreate("attack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	if err := unix.Ftruncate(fd, size); err != nil {
		log.Fatal(err)
	}
	req := abi.RegMRRequest{PD: c.pd, Memory: abi.MemoryMapped, Access: uint32(allAccess), Length: size}
	for n := range times {
		_, err := c.Call(context.Background(), control.Request{Name: "register", Op: abi.OpRegMR, Body: []any{req}, FDs: []int{fd}, Reply: &abi.RegMRReply{}})
		if err != nil {
			fmt.Printf("%d registrations, then %v\n", n, err)
			break
		}
		deeds.Add(1)
	}
	holdAttack()
}

// attackWithHoles registers memory whose pages it takes away and populates while they are read.
func attackWithHoles() {
	const size = 256 << 20
	ctx := context.Background()
	x, y := connectedEnds(1 << 20)
	fd := must(unix.MemfdCreate("attack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	if err := unix.Ftruncate(fd, size); err != nil {
		log.Fatal(err)
	}
	mem := must(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	mr := must(x.pd.RegMRFile(ctx, os.NewFile(uintptr(fd), "attack"), 0, size, 0, allAccess))
	go func() {
		for {
			unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
			unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
		}
	}()
	fmt.Print(inProgress)
	for {
		if err := x.write(mr, y.mr, 1<<20); err != nil {
			log.Fatal(err)
		}
		if err := x.cq.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		var wc [1]verbs.WC
		if must(x.cq.Poll(wc[:])); wc[0].Err() != nil {
			log.Fatal(wc[0].Err())
		}
	}
}
