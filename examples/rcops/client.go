package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"softroce/verbs"
)

// goodbye is the immediate data of the last message.
const goodbye = 0xffffffff

// sizes of the messages: a few bytes, one packet, many packets, and not a multiple of four.
var sizes = []int{64, 4096, 100_001, half}

func runClient(ctx context.Context, socket, device, at string) error {
	e, err := open(ctx, socket, device)
	if err != nil {
		return err
	}
	defer e.nic.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", at)
	for err != nil && ctx.Err() == nil { // the server may be starting
		time.Sleep(20 * time.Millisecond)
		conn, err = d.DialContext(ctx, "tcp", at)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := e.connect(ctx, conn, e.postReply); err != nil {
		return err
	}
	fmt.Printf("client: NIC %s, QP %#x, to QP %#x at %v\n", e.nic.Device(), e.qp.QPNum(), e.peer.QPN, e.peer.GID.Addr())
	for _, size := range sizes {
		for _, op := range []operation{
			{"SEND", e.send}, {"SEND with immediate", e.sendImm}, {"RDMA WRITE", e.write},
			{"RDMA WRITE with immediate", e.writeImm}, {"RDMA READ", e.read},
		} {
			if err := op.run(ctx, size); err != nil {
				return fmt.Errorf("%s of %d bytes: %w", op.name, size, err)
			}
			fmt.Printf("  %-26s %8d bytes  data checked\n", op.name, size)
		}
	}
	if err := e.atomics(ctx); err != nil {
		return fmt.Errorf("atomics: %w", err)
	}
	fmt.Printf("  %-26s %8d bytes  data checked\n", "FETCH_ADD and CMP_SWAP", 8)
	return e.message(ctx, verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: goodbye}, replySize)
}

type operation struct {
	name string
	run  func(ctx context.Context, size int) error
}

func (e *endpoint) send(ctx context.Context, size int) error {
	return e.message(ctx, verbs.SendWR{Opcode: verbs.WRSend}, size)
}

func (e *endpoint) sendImm(ctx context.Context, size int) error {
	return e.message(ctx, verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: uint32(e.messages)}, size)
}

func (e *endpoint) writeImm(ctx context.Context, size int) error {
	return e.message(ctx, verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, Imm: uint32(e.messages), RemoteAddr: e.peer.Addr + half, RKey: e.peer.RKey,
	}, size)
}

// message performs an operation that consumes a receive of the server and waits for the reply. The
// number of the message determines its pattern.
func (e *endpoint) message(ctx context.Context, wr verbs.SendWR, size int) error {
	fill(e.out[:size], byte(e.messages))
	e.messages++
	if err := e.do(ctx, wr, 0, size); err != nil {
		return err
	}
	if _, err := complete(ctx, e.got); err != nil {
		return err
	}
	return e.postReply()
}

// postReply posts the receive of the next reply.
func (e *endpoint) postReply() error {
	return e.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{e.mr.SGE(half, replySize)}})
}

// write writes to the server's memory and reads it back.
func (e *endpoint) write(ctx context.Context, size int) error {
	const seed = 0xa7
	fill(e.out[:size], seed)
	target := verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: e.peer.Addr + half, RKey: e.peer.RKey}
	if err := e.do(ctx, target, 0, size); err != nil {
		return err
	}
	target.Opcode = verbs.WRRDMARead
	if err := e.do(ctx, target, half, size); err != nil {
		return err
	}
	return check(e.in[:size], seed)
}

func (e *endpoint) read(ctx context.Context, size int) error {
	err := e.do(ctx, verbs.SendWR{Opcode: verbs.WRRDMARead, RemoteAddr: e.peer.Addr, RKey: e.peer.RKey}, half, size)
	if err != nil {
		return err
	}
	return check(e.in[:size], serverSeed)
}

// atomics changes a word of the server's memory and checks its previous values.
func (e *endpoint) atomics(ctx context.Context) error {
	word := verbs.SendWR{RemoteAddr: e.peer.Addr + half, RKey: e.peer.RKey}
	binary.NativeEndian.PutUint64(e.out, 40)
	write := word
	write.Opcode = verbs.WRRDMAWrite
	if err := e.do(ctx, write, 0, 8); err != nil {
		return err
	}
	for _, a := range []struct {
		op               verbs.WROpcode
		compareAdd, swap uint64
		previous         uint64
	}{
		{verbs.WRAtomicFetchAndAdd, 2, 0, 40},
		{verbs.WRAtomicCmpAndSwp, 42, 7, 42},
		{verbs.WRAtomicCmpAndSwp, 42, 9, 7}, // the value is 7: no swap
		{verbs.WRAtomicFetchAndAdd, 0, 0, 7},
	} {
		wr := word
		wr.Opcode, wr.CompareAdd, wr.Swap = a.op, a.compareAdd, a.swap
		if err := e.do(ctx, wr, half, 8); err != nil {
			return err
		}
		if previous := binary.NativeEndian.Uint64(e.in); previous != a.previous {
			return fmt.Errorf("%v returned %d, want %d", a.op, previous, a.previous)
		}
	}
	return nil
}

// do posts a work request with size bytes of local memory and waits for its completion.
func (e *endpoint) do(ctx context.Context, wr verbs.SendWR, offset, size int) error {
	wr.SendFlags |= verbs.SendSignaled
	if size > 0 {
		wr.SGList = []verbs.SGE{e.mr.SGE(offset, size)}
	}
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := complete(ctx, e.sent)
	return err
}
