package pingpong_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"testing"

	"softroce/verbs"
)

// stock is the RDMA part of the stock client with -c. It sends from and receives into one buffer of
// 4096 bytes, filled with 0x7b except for the first byte of the page, which is 0.
type stock struct {
	t    *testing.T
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR
	info verbs.Info
}

func newStock(t *testing.T, c *verbs.Context) *stock {
	t.Helper()
	s := &stock{t: t}
	pd, err := c.AllocPD(t.Context())
	s.check(err)
	buf, err := c.AllocBuffer(4096)
	s.check(err)
	s.mr, err = pd.RegMR(t.Context(), buf.Bytes(), verbs.AccessLocalWrite)
	s.check(err)
	s.cq, err = c.CreateCQ(t.Context(), 501, nil)
	s.check(err)
	s.qp, err = pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 500, MaxSendSGE: 1, MaxRecvSGE: 1}})
	s.check(err)
	s.info, err = s.qp.Info(t.Context(), 1)
	s.check(err)
	copy(s.mr.Bytes(), stockMessage())
	return s
}

func stockMessage() []byte {
	m := bytes.Repeat([]byte{0x7b}, 4096)
	m[0] = 0
	return m
}

func (s *stock) check(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatal(err)
	}
}

func (s *stock) wireGID() string { return hex.EncodeToString(s.info.GID[:]) }

func (s *stock) connect(ctx context.Context, dest string) {
	s.t.Helper()
	var there verbs.Info
	var gid string
	if n, err := fmt.Sscanf(dest, "%x:%x:%x:%s", &there.LID, &there.QPN, &there.PSN, &gid); n != 4 || err != nil {
		s.t.Fatalf("%q: %v", dest, err)
	}
	b, err := hex.DecodeString(gid)
	s.check(err)
	copy(there.GID[:], b)
	o := verbs.DefaultConnectOptions()
	o.PathMTU = verbs.MTU1024
	s.check(s.qp.Connect(ctx, there, o))
	for range 500 {
		s.check(s.qp.PostRecv(verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{s.mr.SGE(0, 4096)}}))
	}
}

// pingpong sends the buffer and waits for both its completion and the reply.
func (s *stock) pingpong(ctx context.Context) {
	s.t.Helper()
	s.check(s.qp.PostSend(verbs.SendWR{WRID: 2, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: []verbs.SGE{s.mr.SGE(0, 4096)}}))
	for done := 0; done < 2; {
		s.check(s.cq.Wait(ctx))
		var wc [2]verbs.WC
		n, err := s.cq.Poll(wc[:])
		s.check(err)
		for i := range n {
			s.check(wc[i].Err())
		}
		done += n
	}
	if !bytes.Equal(s.mr.Bytes()[:4096], stockMessage()) {
		s.t.Fatal("the server did not return the message unchanged")
	}
}
