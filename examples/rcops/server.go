package main

import (
	"context"
	"fmt"
	"net"

	"softroce/verbs"
)

// serverSeed is the pattern that the server's memory holds for READs.
const serverSeed = 0x5e

// runServer serves one client. It posts a receive for each message, checks it, and replies; RDMA
// operations do not involve it.
func runServer(ctx context.Context, socket, device, at string) error {
	e, err := open(ctx, socket, device)
	if err != nil {
		return err
	}
	defer e.nic.Close()
	fill(e.out, serverSeed)
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := e.connect(ctx, conn, e.postRecv); err != nil {
		return err
	}
	return e.serve(ctx)
}

func (e *endpoint) postRecv() error {
	return e.qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{e.mr.SGE(half, half)}})
}

// serve checks messages until the goodbye message.
func (e *endpoint) serve(ctx context.Context) error {
	for {
		wc, err := complete(ctx, e.got)
		if err != nil {
			return err
		}
		if wc.WCFlags&verbs.WCWithImm != 0 && wc.Imm == goodbye {
			fmt.Printf("server: %d messages received, data checked\n", e.messages)
			return e.reply(ctx)
		}
		// The data of a SEND and of a WRITE with immediate are at the same place.
		if err := check(e.in[:wc.ByteLen], byte(e.messages)); err != nil {
			return fmt.Errorf("message %d (%v): %w", e.messages, wc.Opcode, err)
		}
		e.messages++
		if err := e.postRecv(); err != nil {
			return err
		}
		if err := e.reply(ctx); err != nil {
			return err
		}
	}
}

// replySize is the length of replies, whose contents do not matter. Tshark 4.0 decodes a SEND of
// fewer than eight bytes as malformed RPC over RDMA.
const replySize = 16

// reply acknowledges a message to the client.
func (e *endpoint) reply(ctx context.Context) error {
	wr := verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(0, replySize)}}
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := complete(ctx, e.sent)
	return err
}
