package nic_test

import (
	"net/netip"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

func TestMulticastReachesGroupExceptSender(t *testing.T) {
	w := newTestFabric(t)
	const group = "239.1.2.3"
	gid := nic.GIDOf(netip.MustParseAddr(group))
	var all []*queue // two on each of three NICs
	for n := range byte(3) {
		c := w.client(w.nic(n + 1))
		c.ah(1, group)
		for range 2 {
			q := c.ud()
			check(t, q.Context.AttachMcast(q.QP.QP, gid))
			check(t, q.Context.AttachMcast(q.QP.QP, gid)) // changes nothing
			for i := range 3 {
				q.recv(uint64(q.QPN())<<8|uint64(i), q.sge(int(q.QPN()%16)*4096, 200))
			}
			all = append(all, q)
		}
	}
	counted := func() (n uint64) {
		for _, q := range all {
			for _, c := range q.cq.PollAll() {
				if c.Opcode == ib.WCRecv && c.Status == ib.WCSuccess && c.ByteLen == 140 {
					n++
				}
			}
		}
		return n
	}
	from := all[0]
	fill(from.mem[:100], 9)
	from.sendTo(1, 1, 0xffffff, 100)
	w.run(1e6)
	if got := counted(); got != 5 {
		t.Errorf("%d copies, want 5", got)
	}
	g := packet.GRH(all[5].mem[int(all[5].QPN()%16)*4096:][:40])
	if g.Dst() != gid.Addr() {
		t.Errorf("GRH has destination %v", g.Dst())
	}
	// A detached queue pair receives nothing. The port leaves the group with its last queue pair.
	check(t, all[4].Context.DetachMcast(all[4].QP.QP, gid))
	wantErrno(t, "to leave twice", all[4].Context.DetachMcast(all[4].QP.QP, gid), syscall.EINVAL)
	wantErrno(t, "to destroy a member", all[5].Destroy(), syscall.EBUSY)
	check(t, all[5].Context.DetachMcast(all[5].QP.QP, gid))
	check(t, all[5].Destroy())
	all[2].Context.Close()
	from.sendTo(2, 1, 0xffffff, 100)
	w.run(1e6)
	if got := counted(); got != 1 {
		t.Errorf("%d copies, want 1", got)
	}
	c4 := all[4].Device.Counters()
	if n := c4.Dropped(); len(n) != 0 {
		t.Errorf("drops on a NIC without members: %v", n)
	}
	if n := from.Device.Counters(); n.Link.TxPackets != 2 || n.RxMulticast != 2 {
		t.Errorf("%d sent, %d delivered", n.Link.TxPackets, n.RxMulticast)
	}
}

func TestAttachMcastChecksArguments(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	gid := func(s string) nic.GID { return nic.GIDOf(netip.MustParseAddr(s)) }
	rc, ud, init := c.qp(smallCaps), c.ud(), c.qpOf(ib.QPTypeUD, smallCaps)
	wantErrno(t, "RC", c.Context.AttachMcast(rc.QP.QP, gid("239.1.2.3")), syscall.EINVAL)
	wantErrno(t, "a unicast GID", c.Context.AttachMcast(ud.QP.QP, gid("192.0.2.3")), syscall.EINVAL)
	wantErrno(t, "another context's", w.client(c.Device).Context.AttachMcast(ud.QP.QP, gid("239.1.2.3")), syscall.ENOENT)
	check(t, c.Context.AttachMcast(ud.QP.QP, gid("ff0e::1")))
	check(t, c.Context.AttachMcast(init.QP.QP, gid("ff0e::1")))
	for range nic.DefaultLimits.MaxMcastQPs - 2 {
		check(t, c.Context.AttachMcast(c.ud().QP.QP, gid("ff0e::1")))
	}
	wantErrno(t, "one too many", c.Context.AttachMcast(c.ud().QP.QP, gid("ff0e::1")), syscall.ENOMEM)
	other := w.clientOf(c.Device, nic.ContextOptions{PID: 1, UID: 1}).ud()
	check(t, other.Context.AttachMcast(other.QP.QP, gid("ff0e::1"))) // one user does not fill a group for all
}

func TestDroppedMulticastFrameCountsOneReason(t *testing.T) {
	w := newTestFabric(t)
	var in *injectingLink
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { in = &injectingLink{Link: l}; return in })).ud()
	gid := nic.GIDOf(netip.MustParseAddr("239.1.2.3"))
	check(t, a.Context.AttachMcast(a.QP.QP, gid))
	head := make([]byte, packet.MaxHeaderLen)
	for _, c := range []struct {
		name   string
		reason string
		dst    string
		edit   func(*wire.RxFrame, *packet.Header)
	}{
		{"group without members", "multicast_group", "239.9.9.9", func(*wire.RxFrame, *packet.Header) {}},
		{"unicast address", "unknown_qpn", "192.0.2.1", func(*wire.RxFrame, *packet.Header) {}},
		{"unicast QPN", "unknown_qpn", "239.1.2.3", func(_ *wire.RxFrame, h *packet.Header) { h.DestQP = a.QPN() }},
		{"wrong ICRC", "icrc", "239.1.2.3", func(f *wire.RxFrame, _ *packet.Header) { f.BadICRC = true }},
		{"P_Key of another partition", "pkey", "239.1.2.3", func(_ *wire.RxFrame, h *packet.Header) { h.PKey = 0x8001 }},
		{"wrong Q_Key", "qkey", "239.1.2.3", func(_ *wire.RxFrame, h *packet.Header) { h.DETH.QKey = 1 }},
		{"opcode of RC", "service", "239.1.2.3", func(_ *wire.RxFrame, h *packet.Header) { h.Opcode = packet.SendOnly }},
		{"no receive posted", "receiver_not_ready", "239.1.2.3", func(*wire.RxFrame, *packet.Header) {}},
	} {
		before := a.Device.Counters()
		h := packet.Header{BTH: packet.BTH{Opcode: 0x64, PKey: packet.DefaultPKey, DestQP: 0xffffff}, DETH: packet.DETH{QKey: testQKey, SrcQP: 5}}
		f := wire.RxFrame{Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr(c.dst)}
		c.edit(&f, &h)
		f.Head = head[:h.Put(head)]
		in.frames = append(in.frames, f)
		w.step()
		after := a.Device.Counters()
		for r := range after.Drops {
			want := uint64(0)
			if transport.DropReason(r).String() == c.reason {
				want = 1
			}
			if got := after.Drops[r] - before.Drops[r]; got != want {
				t.Errorf("%s: %v counted %d times", c.name, transport.DropReason(r), got)
			}
		}
	}
}

// A datagram for a member whose memory blocks is dropped, and counts only as that.
func TestMulticastToHeldQueuePairCountsOnce(t *testing.T) {
	w := newTestFabric(t)
	const group = "239.1.2.3"
	gid := nic.GIDOf(netip.MustParseAddr(group))
	from, member, other := w.client(w.nic(1)), w.client(w.nic(2)).ud(), w.client(w.nic(3)).qp(smallCaps)
	from.ah(1, group)
	sender := from.ud()
	member.useCopiedMemory()
	check(t, member.Context.AttachMcast(member.QP.QP, gid))
	slow := member.client.qp(smallCaps)
	slow.connect(1024, other)
	other.connect(1024, slow)
	b := w.block(slow)
	slow.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: other.mr.RKey(), SGEs: slow.sge(0, 8)})
	w.run(1e6)
	b.one()
	sender.sendTo(1, 1, 0xffffff, 100)
	w.run(1e6)
	c := member.Device.Counters()
	if c.RxMulticast != 0 || c.Drops[transport.DropMemoryWait] != 1 {
		t.Errorf("%d datagrams delivered and %d dropped, want one dropped", c.RxMulticast, c.Drops[transport.DropMemoryWait])
	}
	b.one().Return()
	w.run(1e6)
}
