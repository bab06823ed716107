package nic_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// lacking returns a pair of connected queue pairs, of which the second is on a NIC without the
// features.
func lacking(t *testing.T, features nic.Capability) (with, without *queue) {
	w := newTestFabric(t)
	with = w.client(w.nic(1)).qp(smallCaps)
	without = w.client(w.nicOf(2, nic.DeviceConfig{Identity: nic.Identity{Hidden: features}})).qp(smallCaps)
	with.connect(4096, without)
	without.connect(4096, with)
	return with, without
}

func TestIdentityIsReported(t *testing.T) {
	w := newTestFabric(t)
	own := w.nic(1)
	if a, p := own.Query(), own.QueryPort(); a.FWVer == "" || a.VendorID == 0 || p.ActiveSpeed != ib.SpeedEDR || p.ActiveWidth != ib.Width4X {
		t.Errorf("without an identity: %+v, %+v", a, p)
	}
	d := w.nicOf(2, nic.DeviceConfig{
		Limits: nic.Limits{MaxQP: 3, MaxSGE: 4},
		Identity: nic.Identity{
			VendorID: 0x2c9, VendorPartID: 4129, HWVer: 5, FWVer: "28.39.1002", ActiveSpeed: ib.SpeedNDR, ActiveWidth: ib.Width2X,
		},
	})
	a, p := d.Query(), d.QueryPort()
	if a.VendorID != 0x2c9 || a.VendorPartID != 4129 || a.HWVer != 5 || a.FWVer != "28.39.1002" || a.MaxQP != 3 || a.MaxSGE != 4 {
		t.Errorf("attributes %+v", a)
	}
	if p.ActiveSpeed != ib.SpeedNDR || p.ActiveWidth != ib.Width2X {
		t.Errorf("port %+v", p)
	}
}

// A NIC does not report a feature that it lacks, and refuses it.
func TestHiddenFeatures(t *testing.T) {
	all := nic.CapAtomics | nic.CapAtomicWrite | nic.CapDeviceMemory | nic.CapFlush | nic.CapLocalInvalidate | nic.CapMemoryWindows |
		nic.CapMulticast | nic.CapOnDemandPaging | nic.CapSRQ | nic.CapTimestamps
	with, without := lacking(t, all)
	a, b := with.Device.Query(), without.Device.Query()
	const (
		srqResize   = 1 << 13
		windows     = 1<<17 | 1<<24
		xrc         = 1 << 20
		memMgtExt   = 1 << 21
		flush       = 1 << 38
		atomicWrite = 1 << 40
	)
	if gone := a.CapFlagsEx &^ b.CapFlagsEx; gone != srqResize|windows|xrc|memMgtExt|flush|atomicWrite || b.CapFlagsEx&^a.CapFlagsEx != 0 {
		t.Errorf("capability flags %#x without the features, %#x with them", b.CapFlagsEx, a.CapFlagsEx)
	}
	if uint64(b.DeviceCapFlags) != b.CapFlagsEx&(1<<32-1) {
		t.Errorf("flags %#x and %#x differ", b.DeviceCapFlags, b.CapFlagsEx)
	}
	if b.AtomicCap != ib.AtomicNone || b.MaxMW != 0 || b.OnDemandPaging || without.Context.MaxDM() != 0 {
		t.Errorf("reports atomics %d, %d windows, on-demand paging %t, %d bytes of device memory",
			b.AtomicCap, b.MaxMW, b.OnDemandPaging, without.Context.MaxDM())
	}
	if b.CoreClock != 0 || b.TimestampMask != 0 {
		t.Errorf("reports a clock of %d kHz with bits %#x", b.CoreClock, b.TimestampMask)
	}
	if b.MaxSRQ != 0 || b.MaxSRQWR != 0 || b.MaxSRQSGE != 0 || b.MaxMcastGroups != 0 || b.MaxMcastQPs != 0 || b.MaxMcastAttached != 0 {
		t.Errorf("reports SRQs or multicast groups: %+v", b)
	}
	if own := without.Context.QueryDevice(); own.MaxSRQ != 0 || own.MaxMcastAttached != 0 {
		t.Errorf("reports SRQs or multicast groups to a client: %+v", own)
	}
	_, _, err := without.Device.Clock()
	wantErrno(t, "the clock", err, syscall.EOPNOTSUPP)
	c := without.Context
	_, err = c.CreateCQ(nic.CQConfig{Entries: 16, Ring: nic.NewPage(abi.RingSize(16, abi.CQESize)), Timestamps: true})
	wantErrno(t, "a CQ with timestamps", err, syscall.EOPNOTSUPP)
	_, err = without.CreateSRQ(nic.SRQInit{PD: without.pd, MaxWR: 16, MaxSGE: 1})
	wantErrno(t, "an SRQ", err, syscall.EOPNOTSUPP)
	_, err = c.CreateSRQ(nic.SRQInit{PD: without.pd, MaxWR: 16, MaxSGE: 1})
	wantErrno(t, "an SRQ whose sizes were not rounded", err, syscall.EOPNOTSUPP)
	group := nic.GIDOf(netip.MustParseAddr("ff0e::1"))
	wantErrno(t, "attaching to a multicast group", c.AttachMcast(without.QP.QP, group), syscall.EOPNOTSUPP)
	wantErrno(t, "detaching from a multicast group", c.DetachMcast(without.QP.QP, group), syscall.EOPNOTSUPP)
	_, err = c.AllocDM(64, 0)
	wantErrno(t, "device memory", err, syscall.EOPNOTSUPP)
	_, err = c.AllocMW(without.pd, ib.MWType2)
	wantErrno(t, "a memory window", err, syscall.EOPNOTSUPP)
	_, err = c.OpenXRCD(nic.XRCDKey{}, true, false)
	wantErrno(t, "an XRC domain", err, syscall.EOPNOTSUPP)
	_, err = without.CreateQP(nic.QPInit{Type: ib.QPTypeXRCSend, PD: without.pd, SendCQ: without.cq.CQ, Caps: smallCaps})
	wantErrno(t, "an XRC QP", err, syscall.EOPNOTSUPP)
	for what, access := range map[string]ib.Access{"on-demand paging": ib.AccessOnDemand, "FLUSH": ib.AccessFlushGlobal} {
		_, err = c.RegMR(without.pd, mrtable.HeapMemory(nic.NewPage(4096)), 0, 4096, ib.AccessLocalWrite|access)
		wantErrno(t, what, err, syscall.EOPNOTSUPP)
		err = c.ReregMR(without.mr, without.pd, mrtable.HeapMemory(nic.NewPage(4096)), 0, 4096, ib.AccessLocalWrite|access)
		wantErrno(t, what+" by registering again", err, syscall.EOPNOTSUPP)
	}
}

// A queue pair for operations of which the NIC lacks one is not created.
func TestHiddenOperations(t *testing.T) {
	const inherent = 1<<5 - 1 // WRITE, SEND and READ
	for _, c := range []struct {
		hidden nic.Capability
		lost   ib.SendOps
	}{
		{nic.CapAtomics, ib.SendOpsAtomicCmpAndSwp | ib.SendOpsAtomicFetchAndAdd},
		{nic.CapAtomicWrite, ib.SendOpsAtomicWrite},
		{nic.CapFlush, ib.SendOpsFlush},
		{nic.CapLocalInvalidate, ib.SendOpsLocalInv | ib.SendOpsSendWithInv | ib.SendOpsBindMW},
		{nic.CapMemoryWindows, ib.SendOpsBindMW},
		{nic.CapMemoryWindows2B, ib.SendOpsBindMW},
		{nic.CapMulticast | nic.CapSRQ | nic.CapTimestamps | nic.CapOnDemandPaging, 0},
	} {
		w := newTestFabric(t)
		q := w.client(w.nicOf(1, nic.DeviceConfig{Identity: nic.Identity{Hidden: c.hidden}}))
		for bit := range 13 {
			op := ib.SendOps(1) << bit
			made, err := q.CreateQP(nic.QPInit{Type: ib.QPTypeRC, PD: q.pd, SendCQ: q.cq.CQ, RecvCQ: q.cq.CQ, Caps: smallCaps, SendOps: inherent | op})
			if c.lost&op != 0 {
				wantErrno(t, "an operation that is hidden", err, syscall.EOPNOTSUPP)
				continue
			}
			check(t, err)
			check(t, q.Context.DestroyQP(made.QP))
		}
	}
	with, without := lacking(t, nic.CapXRC|nic.CapAtomics)
	_, err := without.CreateQP(nic.QPInit{Type: ib.QPTypeXRCSend, PD: without.pd, SendCQ: without.cq.CQ, Caps: smallCaps, SendOps: ib.SendOpsAtomicCmpAndSwp})
	wantErrno(t, "an XRC QP", err, syscall.EOPNOTSUPP)
	_, err = with.CreateQP(nic.QPInit{Type: ib.QPTypeXRCSend, PD: with.pd, SendCQ: with.cq.CQ, Caps: smallCaps, SendOps: ib.SendOpsAtomicCmpAndSwp})
	check(t, err)
}

// Windows of type 2B need invalidation; those of type 1 do not.
func TestHiddenWindowsOfType2B(t *testing.T) {
	const window, window2B = 1 << 17, 1 << 24
	for _, c := range []struct {
		hidden nic.Capability
		flags  uint32
	}{
		{0, window | window2B}, {nic.CapMemoryWindows2B, window}, {nic.CapLocalInvalidate, window}, {nic.CapMemoryWindows, 0},
	} {
		w := newTestFabric(t)
		d := w.nicOf(1, nic.DeviceConfig{Identity: nic.Identity{Hidden: c.hidden}})
		if a := d.Query(); a.DeviceCapFlags&(window|window2B) != c.flags || (a.MaxMW != 0) != (c.flags != 0) {
			t.Errorf("without %b: flags %#x, %d windows", c.hidden, a.DeviceCapFlags, a.MaxMW)
		}
		q := w.client(d)
		for kind, flag := range map[ib.MWType]uint32{ib.MWType1: window, ib.MWType2: window2B} {
			_, err := q.Context.AllocMW(q.pd, kind)
			if c.flags&flag != 0 {
				check(t, err)
			} else {
				wantErrno(t, "a window", err, syscall.EOPNOTSUPP)
			}
		}
	}
}

func TestHiddenSRQResize(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nicOf(1, nic.DeviceConfig{Identity: nic.Identity{Hidden: nic.CapSRQResize}}))
	srq, err := c.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: 16, MaxSGE: 1})
	check(t, err)
	wantErrno(t, "resizing", srq.Resize(32, -1), syscall.EINVAL)
	check(t, c.Context.ModifySRQ(srq.SRQ, nic.SRQChange{Limit: 3}))
	if a := srq.Query(); a.MaxWR != 16 {
		t.Errorf("the SRQ has %+v", a)
	}
}

// Completions of a NIC without timestamps have none, also in a CQ that did not ask for them.
func TestCompletionsWithoutTimestamps(t *testing.T) {
	with, without := lacking(t, nic.CapTimestamps)
	for _, c := range []struct {
		from, to *queue
		stamped  bool
	}{{with, without, true}, {without, with, false}} {
		c.from.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: c.to.mr.RKey(), SGEs: c.from.sge(0, 8)})
		c.from.step()
		got := c.from.want(1, ib.WCSuccess, ib.WCRDMAWrite)
		if (got.Timestamp != 0) != c.stamped || (got.Wallclock != 0) != c.stamped {
			t.Errorf("timestamp %d, wall clock %d; with timestamps: %t", got.Timestamp, got.Wallclock, c.stamped)
		}
	}
}

// A client may ask for as much as the device reports, though rings have a power of two of slots.
func TestLimitsThatAreNoPowerOfTwo(t *testing.T) {
	w := newTestFabric(t)
	c := w.open(w.nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxQPWR: 100, MaxSRQWR: 100, MaxCQE: 100}}), nic.ContextOptions{})
	cq, err := c.CreateCQ(100)
	check(t, err)
	_, err = c.CreateCQ(101)
	wantErrno(t, "a CQ above the limit", err, syscall.EINVAL)
	check(t, cq.Resize(100))
	wantErrno(t, "resizing a CQ above the limit", cq.Resize(101), syscall.EINVAL)

	srq, err := c.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: 100, MaxSGE: 1})
	check(t, err)
	_, err = c.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: 101, MaxSGE: 1})
	wantErrno(t, "an SRQ above the limit", err, syscall.EINVAL)
	check(t, srq.Resize(100, -1))
	wantErrno(t, "resizing an SRQ above the limit", srq.Resize(101, -1), syscall.EINVAL)

	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUD, ib.QPTypeXRCSend} {
		o := nic.QPInit{Type: kind, PD: c.pd, SendCQ: cq.CQ, Caps: nic.Caps{MaxSendWR: 100, MaxSendSGE: 1}}
		if kind != ib.QPTypeXRCSend {
			o.RecvCQ, o.Caps.MaxRecvWR = cq.CQ, 100
		}
		_, err = c.CreateQP(o)
		check(t, err)
		o.Caps.MaxSendWR = 101
		_, err = c.CreateQP(o)
		wantErrno(t, "a QP above the limit", err, syscall.EINVAL)
	}
}

// A NIC may send fewer or more READs than it executes.
func TestLimitOfReadsThatAQueuePairSends(t *testing.T) {
	w := newTestFabric(t)
	d := w.nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxRDAtomic: 16, MaxInitRDAtomic: 4}})
	if a := d.Query(); a.MaxQPRDAtomic != 16 || a.MaxQPInitRDAtom != 4 {
		t.Errorf("reports %d and %d", a.MaxQPRDAtomic, a.MaxQPInitRDAtom)
	}
	q := w.client(d).qp(smallCaps)
	a := attrs(1024, q)
	a.MaxRDAtomic, a.MaxDestRDAtomic = 4, 16
	q.connectWith(a)
	a.MaxRDAtomic = 5
	wantErrno(t, "sending more", q.Context.ModifyQP(q.QP.QP, &a, ib.QPMaskMaxRDAtomic), syscall.EINVAL)

	for _, c := range []struct{ limits, want nic.Limits }{
		{nic.Limits{MaxRDAtomic: 16}, nic.Limits{MaxRDAtomic: 16, MaxInitRDAtomic: 16}},
		{nic.Limits{MaxRDAtomic: 16, MaxInitRDAtomic: 32}, nic.Limits{MaxRDAtomic: 16, MaxInitRDAtomic: 32}},
		{nic.Limits{MaxInitRDAtomic: 256}, nic.Limits{MaxRDAtomic: 128, MaxInitRDAtomic: 128}},
		{nic.Limits{}, nic.Limits{MaxRDAtomic: 128, MaxInitRDAtomic: 128}},
	} {
		if a := newTestFabric(t).nicOf(1, nic.DeviceConfig{Limits: c.limits}).Query(); a.MaxQPRDAtomic != c.want.MaxRDAtomic || a.MaxQPInitRDAtom != c.want.MaxInitRDAtomic {
			t.Errorf("%+v: reports %d and %d", c.limits, a.MaxQPRDAtomic, a.MaxQPInitRDAtom)
		}
	}
}

func TestLimitOfAttachedQueuePairs(t *testing.T) {
	w := newTestFabric(t)
	d := w.nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxMcastGroups: 32, MaxMcastQPs: 8, MaxMcastAttached: 3}})
	if a := d.Query(); a.MaxMcastAttached != 3 {
		t.Errorf("reports %d queue pairs", a.MaxMcastAttached)
	}
	c := w.client(d)
	n := 0
	for i := range byte(4) {
		q := c.ud()
		if err := c.Context.AttachMcast(q.QP.QP, nic.GIDOf(netip.AddrFrom4([4]byte{239, 1, 2, i}))); err == nil {
			n++
		} else {
			wantErrno(t, "one too many", err, syscall.ENOMEM)
		}
	}
	if n != 3 {
		t.Errorf("%d queue pairs were attached, want 3", n)
	}
	if a := newTestFabric(t).nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxMcastGroups: 3, MaxMcastQPs: 2}}).Query(); a.MaxMcastAttached != 6 {
		t.Errorf("reports %d queue pairs in 3 groups of 2", a.MaxMcastAttached)
	}
}

func TestLimitOfPKeys(t *testing.T) {
	w := newTestFabric(t)
	limits := nic.Limits{MaxPKeys: 2}
	d := w.nicOf(1, nic.DeviceConfig{Limits: limits, PKeys: []uint16{0xffff, 0x8001}})
	if a := d.Query(); a.MaxPKeys != 2 {
		t.Errorf("reports %d P_Keys", a.MaxPKeys)
	}
	iface := wire.StaticInterface("fab0", [6]byte{2, 0, 0, 0, 0, 2}, 9000)
	link := w.fabric.NewLink(w.engine, netip.MustParseAddr("192.0.2.2"))
	_, err := w.engine.AddDevice(nic.DeviceConfig{Name: "nic2", Link: link, Iface: iface, Limits: limits, PKeys: []uint16{0xffff, 0x8001, 0x8002}})
	wantErrno(t, "more P_Keys than the limit", err, syscall.EINVAL)
	check(t, link.Close())
}

func TestLimitsThatAreOnlyReported(t *testing.T) {
	for _, c := range []struct{ limits, want nic.Limits }{
		{nic.Limits{}, nic.Limits{MaxResRDAtomic: 128 << 20, PageSizes: 0xfffff000, LocalACKDelay: 15}},
		{nic.Limits{MaxQP: 10, MaxRDAtomic: 16}, nic.Limits{MaxResRDAtomic: 160, PageSizes: 0xfffff000, LocalACKDelay: 15}},
		{nic.Limits{MaxQP: 10, MaxRDAtomic: 16, MaxResRDAtomic: 161}, nic.Limits{MaxResRDAtomic: 160, PageSizes: 0xfffff000, LocalACKDelay: 15}},
		{nic.Limits{MaxResRDAtomic: 99, PageSizes: 0x100201000, LocalACKDelay: 16}, nic.Limits{MaxResRDAtomic: 99, PageSizes: 0x201000, LocalACKDelay: 16}},
		{nic.Limits{PageSizes: 1 << 32, LocalACKDelay: 32}, nic.Limits{MaxResRDAtomic: 128 << 20, PageSizes: 0xfffff000, LocalACKDelay: 31}},
		{nic.Limits{LocalACKDelay: 4}, nic.Limits{MaxResRDAtomic: 128 << 20, PageSizes: 0xfffff000, LocalACKDelay: 15}},
	} {
		w := newTestFabric(t)
		d := w.nicOf(1, nic.DeviceConfig{Limits: c.limits})
		for _, a := range []nic.DeviceAttr{d.Query(), w.client(d).Context.QueryDevice()} {
			if a.MaxResRDAtomic != c.want.MaxResRDAtomic || a.PageSizeCap != c.want.PageSizes || a.LocalCAACKDelay != c.want.LocalACKDelay {
				t.Errorf("%+v: reports %+v", c.limits, a)
			}
		}
	}
}

// It holds for each kind of memory, and for a region that is registered again. A region as large as
// the limit is allowed.
func TestLimitOfTheSizeOfARegion(t *testing.T) {
	const most = 8192
	w := newTestFabric(t)
	d := w.nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxMRSize: most}})
	if a := d.Query(); a.MaxMRSize != most {
		t.Errorf("reports regions of %d bytes", a.MaxMRSize)
	}
	c := w.open(d, nic.ContextOptions{})
	memory := func() mrtable.Memory { return mrtable.HeapMemory(nic.NewPage(most + 1)) }
	_, err := c.Context.RegMR(c.pd, memory(), 0, most+1, ib.AccessLocalWrite)
	wantErrno(t, "a larger region", err, syscall.EINVAL)
	m, err := c.Context.RegMR(c.pd, memory(), 0, most, ib.AccessLocalWrite)
	check(t, err)
	err = c.Context.ReregMR(m, c.pd, memory(), 0, most+1, ib.AccessLocalWrite)
	wantErrno(t, "registering more again", err, syscall.EINVAL)
	check(t, c.Context.ReregMR(m, c.pd, memory(), 0, 1, ib.AccessLocalWrite))
	check(t, c.Context.ReregMR(m, c.pd, memory(), 0, most, ib.AccessLocalWrite))

	dm, err := c.Context.AllocDM(2*most, 0)
	check(t, err)
	_, err = c.Context.RegDM(c.pd, dm, 0, most+4, ib.AccessLocalWrite|ib.AccessZeroBased)
	wantErrno(t, "device memory", err, syscall.EINVAL)
	_, err = c.Context.RegDM(c.pd, dm, 4, most, ib.AccessLocalWrite|ib.AccessZeroBased)
	check(t, err)
}

// A READ with too many elements completes with an error. Other operations may have them.
func TestLimitOfTheElementsOfARead(t *testing.T) {
	for _, c := range []struct {
		limit, reported, sges int
		status                ib.WCStatus
	}{{2, 2, 2, ib.WCSuccess}, {2, 2, 3, ib.WCLocQPOpErr}, {0, 4, 4, ib.WCSuccess}, {5, 4, 4, ib.WCSuccess}} {
		w := newTestFabric(t)
		d := w.nicOf(1, nic.DeviceConfig{Limits: nic.Limits{MaxSGE: 4, MaxReadSGE: c.limit}})
		if a := d.Query(); a.MaxSGE != 4 || a.MaxSGERd != c.reported {
			t.Errorf("limit %d: reports %d elements, %d of a READ", c.limit, a.MaxSGE, a.MaxSGERd)
		}
		caps := smallCaps
		caps.MaxSendSGE, caps.MaxRecvSGE = 4, 4
		a, b := w.client(d).qp(caps), w.client(w.nic(2)).qp(smallCaps)
		a.connect(4096, b)
		b.connect(4096, a)
		var sges []transport.SGE
		for i := range c.sges {
			sges = append(sges, a.sge(8*i, 8)...)
		}
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: sges})
		a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMARead, RKey: b.mr.RKey(), SGEs: sges})
		w.run(int64(time.Second))
		a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
		a.want(2, c.status, ib.WCRDMARead)
	}
}

// A requester without atomics completes the work request with an error, and a responder without
// them rejects the request as invalid.
func TestAtomicsAreRefusedAtBothEnds(t *testing.T) {
	atomic := func(from, to *queue) transport.SendWR {
		return transport.SendWR{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, RKey: to.mr.RKey(), CompareAdd: 1, SGEs: from.sge(0, 8)}
	}
	with, without := lacking(t, nic.CapAtomics)
	without.post(atomic(without, with))
	without.step()
	without.want(1, ib.WCLocQPOpErr, ib.WCFetchAdd)

	with, without = lacking(t, nic.CapAtomics)
	with.post(atomic(with, without))
	with.step()
	with.want(1, ib.WCRemInvReqErr, ib.WCFetchAdd)
	if without.mem[0] != 0 {
		t.Error("the responder has executed the atomic")
	}
}

// The same holds for invalidation, also at the end of a SEND of several packets. Other SENDs pass.
func TestInvalidationIsRefusedAtBothEnds(t *testing.T) {
	for _, o := range []struct {
		wr ib.WROpcode
		wc ib.WCOpcode
	}{{ib.WRLocalInv, ib.WCLocalInv}, {ib.WRSendWithInv, ib.WCSend}} {
		with, without := lacking(t, nic.CapLocalInvalidate)
		without.post(transport.SendWR{ID: 1, Opcode: o.wr, Imm: with.mr.RKey()})
		without.step()
		without.want(1, ib.WCLocQPOpErr, o.wc)
	}
	for _, length := range []int{8, 9000} {
		with, without := lacking(t, nic.CapLocalInvalidate)
		for id := range uint64(2) {
			without.recv(id, without.sge(0, 9000))
		}
		with.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: with.sge(0, length)})
		with.step()
		with.want(1, ib.WCSuccess, ib.WCSend)
		with.post(transport.SendWR{ID: 2, Opcode: ib.WRSendWithInv, Imm: without.mr.RKey(), SGEs: with.sge(0, length)})
		with.step()
		with.want(2, ib.WCRemInvReqErr, ib.WCSend)
	}
}

func TestErrorsCarryVendorErr(t *testing.T) {
	for _, errs := range []map[ib.WCStatus]uint32{{ib.WCRemAccessErr: 0x88, ib.WCWRFlushErr: 0xf9}, nil} {
		w := newTestFabric(t)
		a := w.client(w.nicOf(1, nic.DeviceConfig{Identity: nic.Identity{VendorErrs: errs}})).qp(smallCaps)
		b := w.client(w.nic(2)).qp(smallCaps)
		a.connect(4096, b)
		b.connect(4096, a)
		for id, rkey := range []uint32{b.mr.RKey(), b.mr.RKey() + 1, b.mr.RKey()} {
			a.post(transport.SendWR{ID: uint64(id), Opcode: ib.WRRDMAWrite, RKey: rkey, SGEs: a.sge(0, 8)})
		}
		w.run(int64(time.Second))
		for id, status := range []ib.WCStatus{ib.WCSuccess, ib.WCRemAccessErr, ib.WCWRFlushErr} {
			if got := a.want(uint64(id), status, ib.WCRDMAWrite); got.VendorErr != errs[status] {
				t.Errorf("%v: vendor_err %#x, want %#x", status, got.VendorErr, errs[status])
			}
		}
	}
}
