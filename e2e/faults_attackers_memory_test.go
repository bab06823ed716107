package e2e

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// allAccess are the rights of an attacker's memory.
const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// An attackEndpoint is a queue pair of an attacker.
type attackEndpoint struct {
	*verbs.QP
	pd *verbs.PD
	cq *verbs.CQ
	mr *verbs.MR
}

// openAttackEndpoint opens a device and registers a buffer.
func openAttackEndpoint(device string, buffer int) *attackEndpoint {
	ctx := context.Background()
	c := must(verbs.Open(ctx, device))
	e := &attackEndpoint{pd: must(c.AllocPD(ctx)), cq: must(c.CreateCQ(ctx, 4096, nil))}
	e.mr = must(e.pd.RegMR(ctx, must(c.AllocBuffer(buffer)).Bytes(), allAccess))
	return e
}

// newQP adds a queue pair to an endpoint.
func (e *attackEndpoint) newQP() *attackEndpoint {
	f := *e
	f.QP = must(e.pd.CreateQP(context.Background(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	return &f
}

// connectAttackEndpoints connects two queue pairs.
func connectAttackEndpoints(x, y *attackEndpoint) {
	ctx := context.Background()
	xi, yi := must(x.Info(ctx, verbs.AnyGID)), must(y.Info(ctx, verbs.AnyGID))
	for _, err := range []error{x.Connect(ctx, yi, verbs.DefaultConnectOptions()), y.Connect(ctx, xi, verbs.DefaultConnectOptions())} {
		if err != nil {
			log.Fatal(err)
		}
	}
}

// connectedAttackEndpoints returns connected queue pairs on the two NICs.
func connectedAttackEndpoints(buffer int) (x, y *attackEndpoint) {
	x, y = openAttackEndpoint("softroce0", buffer).newQP(), openAttackEndpoint("softroce1", buffer).newQP()
	connectAttackEndpoints(x, y)
	return x, y
}

// write posts an RDMA WRITE of n bytes.
func (e *attackEndpoint) write(from, to *verbs.MR, n int) error {
	return e.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.SGE(0, n)}, RemoteAddr: to.Addr(), RKey: to.RKey()})
}

// attackWithBandwidth keeps 64 queue pairs busy with large messages.
func attackWithBandwidth() {
	const size = 32 << 20
	a, b := openAttackEndpoint("softroce0", size), openAttackEndpoint("softroce1", size)
	var from []*attackEndpoint
	for range 64 {
		x, y := a.newQP(), b.newQP()
		connectAttackEndpoints(x, y)
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
		achieved.Add(1)
	}
	holdAttack()
}

// attackWithHoles registers a memfd, which the daemon maps, and takes its pages away and populates
// them while they are read.
func attackWithHoles() {
	attackThroughHoles(func(pd *verbs.PD, f *os.File, size uint64) (*verbs.MR, error) {
		return pd.RegMRFile(context.Background(), f, 0, size, 0, allAccess)
	})
}

// attackWithHolesInBuffer does the same with a memfd that is registered as a DMA buffer, which the
// daemon cannot seal.
func attackWithHolesInBuffer() {
	attackThroughHoles(func(pd *verbs.PD, f *os.File, size uint64) (*verbs.MR, error) {
		return pd.RegDMABuf(context.Background(), f, 0, size, 0, allAccess)
	})
}

func attackThroughHoles(register func(pd *verbs.PD, f *os.File, size uint64) (*verbs.MR, error)) {
	const size = 256 << 20
	x, y := connectedAttackEndpoints(1 << 20)
	fd := must(unix.MemfdCreate("attack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	if err := unix.Ftruncate(fd, size); err != nil {
		log.Fatal(err)
	}
	mem := must(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	mr := must(register(x.pd, os.NewFile(uintptr(fd), "attack"), size))
	go func() {
		for {
			unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
			unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
		}
	}()
	fmt.Print(inProgress)
	for {
		x.writeWholly(mr, y.mr, 1<<20)
	}
}

// attackWithHolesInRings takes away the pages of all memory that the daemon has created for this
// client.
func attackWithHolesInRings() {
	x, y := connectedAttackEndpoints(1 << 20)
	shared := sharedMappings()
	if len(shared) < 3 { // rings and doorbells of two contexts
		log.Fatalf("%d mappings are shared with the daemon", len(shared))
	}
	for _, m := range shared {
		go func() {
			for {
				unix.Syscall(unix.SYS_MADVISE, m.first, m.end-m.first, unix.MADV_REMOVE)
			}
		}()
	}
	fmt.Print(inProgress)
	for {
		x.writeWholly(x.mr, y.mr, 64)
	}
}

type mapping struct{ first, end uintptr }

// sharedMappings returns the mappings of rings and doorbells.
func sharedMappings() (all []mapping) {
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/maps")))) {
		if strings.Contains(line, "memfd:softroce-rings") || strings.Contains(line, "memfd:softroce-doorbells") {
			var m mapping
			if _, err := fmt.Sscanf(line, "%x-%x", &m.first, &m.end); err != nil {
				log.Fatal(err)
			}
			all = append(all, m)
		}
	}
	return all
}

// writeWholly carries out an RDMA WRITE of n bytes.
func (e *attackEndpoint) writeWholly(from, to *verbs.MR, n int) {
	if err := e.write(from, to, n); err != nil {
		log.Fatal(err)
	}
	if err := e.cq.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	var wc [1]verbs.WC
	if must(e.cq.Poll(wc[:])); wc[0].Err() != nil {
		log.Fatal(wc[0].Err())
	}
}
