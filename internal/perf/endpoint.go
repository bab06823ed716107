package perf

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"softroce/internal/rendezvous"
	"softroce/verbs"
)

// endpoint holds one side's objects: a memory region with one slot per queue pair, and one CQ for
// all completions.
type endpoint struct {
	o        Options
	c        *verbs.Context
	pd       *verbs.PD
	buf      *verbs.Buffer
	mr       *verbs.MR
	events   *verbs.CompChannel // at the server of Send
	cq       *verbs.CQ
	qps      []*verbs.QP
	ahs      []*verbs.AH // UD
	received []uint64    // messages received per queue pair
	server   bool
	gid      int
	info     endpointInfo
}

// newEndpoint creates the objects for o on c. The caller closes the result, even after an error.
func newEndpoint(ctx context.Context, c *verbs.Context, o Options, server bool) (s *endpoint, err error) {
	s = &endpoint{o: o, c: c, server: server}
	port, err := c.QueryPort(ctx)
	if err != nil {
		return s, err
	}
	s.info = endpointInfo{Device: c.Device(), MTU: port.ActiveMTU.Bytes()}
	if s.pd, err = c.AllocPD(ctx); err != nil {
		return s, err
	}
	n := o.QPs * o.stride()
	if s.buf, err = c.AllocBuffer(n); err != nil {
		return s, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	access := verbs.AccessLocalWrite
	if server {
		access |= verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	}
	if s.mr, err = s.pd.RegMR(ctx, s.buf.Bytes()[:n], access); err != nil {
		return s, err
	}
	s.info.Addr, s.info.RKey = s.mr.Addr(), s.mr.RKey()
	return s, s.createQPs(ctx)
}

func (s *endpoint) createQPs(ctx context.Context) (err error) {
	caps := verbs.QPCap{MaxSendWR: uint32(s.o.Depth), MaxSendSGE: 1, MaxRecvSGE: 1, MaxRecvWR: 1}
	entries := s.o.Depth
	if s.server {
		caps.MaxSendWR, entries = 1, 1
		if s.o.Op == Send {
			caps.MaxRecvWR = uint32(s.o.recvDepth())
			entries = s.o.recvDepth()
			if s.events, err = s.c.CreateCompChannel(ctx); err != nil {
				return err
			}
		}
	}
	if s.cq, err = s.c.CreateCQ(ctx, entries*s.o.QPs+1, s.events); err != nil {
		return err
	}
	kind := map[Type]verbs.QPType{RC: verbs.RC, UC: verbs.UC, UD: verbs.UD}[s.o.Type]
	s.received = make([]uint64, s.o.QPs)
	for range s.o.QPs {
		qp, err := s.pd.CreateQP(ctx, verbs.QPInitAttr{QPType: kind, SendCQ: s.cq, RecvCQ: s.cq, Cap: caps})
		if err != nil {
			return err
		}
		s.qps = append(s.qps, qp)
	}
	return nil
}

func (s *endpoint) close() {
	for _, q := range s.qps {
		q.Close(context.Background())
	}
	for _, a := range s.ahs {
		a.Close(context.Background())
	}
	if s.cq != nil {
		s.cq.Close(context.Background())
	}
	if s.events != nil {
		s.events.Close(context.Background())
	}
	if s.mr != nil {
		s.mr.Close(context.Background())
	}
	if s.buf != nil {
		s.buf.Close()
	}
	if s.pd != nil {
		s.pd.Close(context.Background())
	}
}

// chooseGID selects GID index want, or one that can reach the peer, and fills in the endpoint's
// QPs.
func (s *endpoint) chooseGID(ctx context.Context, want int, conn net.Conn, peer netip.Addr) error {
	gids, err := s.c.GIDs(ctx)
	if err != nil {
		return err
	}
	s.gid = want
	if want == verbs.AnyGID {
		s.gid = rendezvous.PickGID(gids, rendezvous.LocalAddr(conn), peer)
	}
	for _, q := range s.qps {
		info, err := q.Info(ctx, s.gid)
		if err != nil {
			return fmt.Errorf("%s: %w", s.c.Device(), err)
		}
		s.info.QPs = append(s.info.QPs, info)
	}
	return nil
}

// connect connects each queue pair with that of the peer.
func (s *endpoint) connect(ctx context.Context, peer endpointInfo, mtu int) error {
	if len(peer.QPs) != len(s.qps) {
		return fmt.Errorf("%w: it has %d queue pairs, want %d", ErrPeer, len(peer.QPs), len(s.qps))
	}
	if s.o.Type == UD {
		return s.createAHs(ctx, peer, mtu)
	}
	o := verbs.DefaultConnectOptions()
	o.GIDIndex = s.gid
	o.PathMTU, _ = verbs.ParseMTU(mtu)
	o.MinRNRTimer = rnrTimer
	for i, q := range s.qps {
		if err := q.Connect(ctx, peer.QPs[i], o); err != nil {
			return err
		}
	}
	return nil
}

// qkey is the Q_Key of all UD queue pairs.
const qkey = 0x11111111

// createAHs brings UD queue pairs to RTS and creates an address handle for the peer of each.
func (s *endpoint) createAHs(ctx context.Context, peer endpointInfo, mtu int) error {
	if s.o.Size > mtu {
		return fmt.Errorf("size %d: a datagram has at most the bytes of the path MTU: want 1 to %d", s.o.Size, mtu)
	}
	gids, err := s.c.GIDs(ctx)
	if err != nil {
		return err
	}
	from := slices.IndexFunc(gids, func(e verbs.GIDEntry) bool {
		return e.GID == s.info.QPs[0].GID && (e.Index == s.gid || s.gid == verbs.AnyGID && !e.RoCEv1)
	})
	if from < 0 {
		return fmt.Errorf("GID %v of %s was removed", s.info.QPs[0].GID, s.c.Device())
	}
	for i, q := range s.qps {
		if err := q.ToDatagram(ctx, qkey); err != nil {
			return err
		}
		a, err := s.pd.CreateAH(ctx, verbs.AHAttr{GRH: verbs.GlobalRoute{
			DGID: peer.QPs[i].GID, SGIDIndex: uint8(gids[from].Index), HopLimit: 64,
		}})
		if err != nil {
			return err
		}
		s.ahs = append(s.ahs, a)
	}
	return nil
}

// rnrTimer is the code of 10 µs: the server is late only by a scheduling delay.
const rnrTimer = 1

// slot returns the memory of queue pair i.
func (s *endpoint) slot(i int) []byte {
	at := i * s.o.stride()
	if s.server {
		at += s.o.header()
	}
	return s.buf.Bytes()[at:][:s.o.Size]
}

// fill writes data that both sides can generate: pseudorandom bytes on the side that sends the
// data, zeros for atomics.
func (s *endpoint) fill() {
	if s.o.Op == Atomic {
		return // new memory is zero
	}
	rnd := s.random()
	for i := range s.qps {
		fillRandom(s.slot(i), rnd)
	}
}

func (s *endpoint) random() *rand.Rand {
	return rand.New(rand.NewPCG(uint64(s.o.Size), uint64(s.o.QPs)))
}

func fillRandom(b []byte, rnd *rand.Rand) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, rnd.Uint64())
		b = b[8:]
	}
	for j := range b {
		b[j] = byte(rnd.Uint32())
	}
}

// slotsPlausible reports whether each slot holds the data sent or, where packets may have been
// lost, its initial zeros. The slot of a queue pair that received a message must be complete.
func (s *endpoint) slotsPlausible() bool {
	rnd := s.random()
	want := make([]byte, s.o.Size)
	for i := range s.qps {
		fillRandom(want, rnd)
		for k, b := range s.slot(i) {
			if b != want[k] && (b != 0 || s.received[i] > 0) {
				return false
			}
		}
	}
	return true
}

// sendsData reports whether this side is the source of the data.
func (s *endpoint) sendsData() bool { return s.server == (s.o.Op == Read) }

// checksum returns the CRC of all slots.
func (s *endpoint) checksum() (sum uint32) {
	for i := range s.qps {
		sum = crc32.Update(sum, crc32.IEEETable, s.slot(i))
	}
	return sum
}

// sumCounters returns the sum of the counters that Atomic incremented.
func (s *endpoint) sumCounters() (sum uint64) {
	for i := range s.qps {
		sum += binary.LittleEndian.Uint64(s.slot(i))
	}
	return sum
}
