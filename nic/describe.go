package nic

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"softroce/internal/ib"
)

// A description is a Snapshot that is being made. The engine visits it several times and describes
// a bounded number of objects each time. In between, objects may be created and destroyed: the
// lists are copies, and an object that is gone is left out.
type description struct {
	device   *Device
	snapshot Snapshot
	started  bool
	contexts []*Context // that are left
	groups   []GID      // likewise

	// What is left of the context that is being described.
	owner Owner
	pds   []*PD
	mrs   []*MR
	mws   []*MW
	dms   []*DM
	cqs   []*CQ
	srqs  []*SRQ
	qps   []*QP
	ahs   []*AH
}

const (
	visitObjects = 128 // described in one visit: about 100 µs

	// Between two visits the engine is left alone this many times as long as the first one took.
	visitPause = 4
)

// Snapshot returns the state of a device of this engine. It may be called from any goroutine but
// the engine's, and delays the engine little, however many objects there are. Objects that are
// created or destroyed in the meantime may be missing.
func (e *Engine) Snapshot(d *Device) Snapshot {
	s := description{device: d}
	for {
		var done bool
		var took int64
		e.Do(func() {
			start := e.Now()
			done = s.visit(visitObjects)
			took = e.Now() - start
		})
		if done {
			return s.finish()
		}
		if !e.config.Stepped {
			time.Sleep(time.Duration(visitPause * took))
		}
	}
}

// Snapshot is Engine.Snapshot in one piece. It runs on the engine.
func (d *Device) Snapshot() Snapshot {
	s := description{device: d}
	for !s.visit(math.MaxInt) {
	}
	return s.finish()
}

// visit describes up to n objects and reports whether all are described. It runs on the engine.
func (s *description) visit(n int) (done bool) {
	if !s.started {
		s.start()
		return false
	}
	out, o := &s.snapshot, s.owner
	for n > 0 {
		before := n
		describe(&n, &s.pds, &out.PDs, func(p *PD) bool { return p.ctx != nil }, func(p *PD) PDInfo { return PDInfo{o, p.id, p.users} })
		describe(&n, &s.mrs, &out.MRs, func(m *MR) bool { return m.ctx != nil }, func(m *MR) MRInfo {
			return m.info(o)
		})
		describe(&n, &s.mws, &out.MWs, func(m *MW) bool { return m.ctx != nil }, func(m *MW) MWInfo { return m.info(o) })
		describe(&n, &s.dms, &out.DMs, func(m *DM) bool { return m.ctx != nil }, func(m *DM) DMInfo {
			return DMInfo{o, m.id, m.Length(), m.users}
		})
		describe(&n, &s.cqs, &out.CQs, func(q *CQ) bool { return q.ctx != nil }, func(q *CQ) CQInfo { return q.info(o) })
		describe(&n, &s.srqs, &out.SRQs, func(q *SRQ) bool { return q.ctx != nil }, func(q *SRQ) SRQInfo { return q.info(o) })
		describe(&n, &s.qps, &out.QPs, func(q *QP) bool { return q.ctx != nil }, func(q *QP) QPInfo { return q.info(o) })
		describe(&n, &s.ahs, &out.AHs, func(a *AH) bool { return a.ctx != nil }, func(a *AH) AHInfo {
			return a.info(o, uint64(len(out.Contexts))<<32)
		})
		if n < before {
			continue
		}
		if s.open() { // copying the lists is a visit of its own
			return false
		}
		d := s.device
		describe(&n, &s.groups, &out.Groups, func(g GID) bool { return d.groups[g] != nil }, func(g GID) GroupInfo {
			return d.groups[g].info(g)
		})
		if len(s.groups) > 0 {
			return false
		}
		// Last, so that a queue pair that ends meanwhile is in one of the lists.
		s.snapshot.Ended = slices.Clone(d.ended.list)
		return true
	}
	return false
}

// describe appends the descriptions of up to *n objects that still exist, and removes the objects
// from the list. The rings of an object that is gone are unmapped.
func describe[T, I any](n *int, list *[]T, out *[]I, exists func(T) bool, info func(T) I) {
	for ; *n > 0 && len(*list) > 0; *n-- {
		if o := (*list)[0]; exists(o) {
			*out = append(*out, info(o))
		}
		*list = (*list)[1:]
	}
}

// start describes the device itself.
func (s *description) start() {
	d := s.device
	port := d.QueryPort()
	s.snapshot = Snapshot{
		Name: d.name, GUID: d.guid, Netdev: d.iface.Name(), Engines: d.Slices(), PortState: port.State, ActiveMTU: port.ActiveMTU,
		GIDs: d.GIDs(), PKeys: d.PKeys(), Counters: d.Counters(), Faults: d.faultInfos(), Identity: d.identity,
	}
	if second, err := d.QueryPortNumber(2); err == nil {
		s.snapshot.Port2 = second.State
	}
	s.snapshot.Congestion = CongestionInfo{d.congestion.params.Algorithm.String(), d.congestion.params.Values()}
	if d.linkName != nil {
		s.snapshot.Link = d.linkName()
	}
	for _, k := range d.slices {
		if k.linkError != nil {
			s.snapshot.LinkError = k.linkError.Error()
			break
		}
	}
	s.contexts, s.groups = slices.Clone(d.contexts), slices.Collect(maps.Keys(d.groups))
	s.started = true
}

// open describes the next context that still exists, and copies the lists of its objects.
func (s *description) open() bool {
	for len(s.contexts) > 0 {
		c := s.contexts[0]
		s.contexts = s.contexts[1:]
		if c.closed {
			continue
		}
		s.owner = c.owner()
		n := &c.count
		s.snapshot.Contexts = append(s.snapshot.Contexts, ContextInfo{s.owner, n[kindPD], n[kindQP], n[kindCQ], n[kindMR], n[kindMW], n[kindSRQ], n[kindAH], n[kindXRCD],
			c.registered, c.ringBytes, len(c.dms), c.deviceMemory})
		s.pds, s.mrs, s.mws, s.dms = slices.Clone(c.pds), slices.Clone(c.mrs), slices.Clone(c.mws), slices.Clone(c.dms)
		s.cqs, s.srqs, s.qps = slices.Clone(c.cqs), slices.Clone(c.srqs), slices.Clone(c.qps)
		s.ahs = slices.Collect(maps.Values(c.ahs))
		return true
	}
	return false
}

// finish puts what comes from maps in order.
func (s *description) finish() Snapshot {
	slices.SortFunc(s.snapshot.AHs, func(a, b AHInfo) int { return cmp.Compare(a.order, b.order) })
	slices.SortFunc(s.snapshot.Groups, func(a, b GroupInfo) int { return a.Addr.Compare(b.Addr) })
	return s.snapshot
}

func (q *QP) info(o Owner) QPInfo {
	a := q.t.Query()
	i := QPInfo{
		Owner: o, QPN: q.qpn, RemoteQPN: a.DestQPN, Type: q.init.Type.String(), State: a.State.String(), Engine: q.device.engine.config.Number,
		PathMTU: a.PathMTU, PKey: a.PKey, SQPSN: a.SQPSN, RQPSN: a.RQPSN, SendPosted: int(q.sq.loadProducer() - q.sqDone),
		Caps: q.init.Caps, QPCounters: q.t.Counters(), Rate: q.rate(),
	}
	if q.pd != nil {
		i.PD = q.pd.id
	}
	if q.sendCQ != nil {
		i.SendCQ = q.sendCQ.id
	}
	if q.recvCQ != nil {
		i.RecvCQ = q.recvCQ.id
	}
	if q.srq != nil {
		i.SRQ = q.srq.id
	}
	if a.State != ib.QPSReset && !q.recv.shared {
		i.RecvPosted = int(min(q.recv.ring.loadProducer()-q.recv.ring.consumerIndex, q.recv.ring.size()))
	}
	i.Failure, i.Stall = q.diagnosis()
	if p := q.path; p != nil {
		i.PathInfo, i.SrcPort = pathInfo(p), p.SrcPort
	}
	return i
}

func (m *MR) info(o Owner) MRInfo {
	i := MRInfo{Owner: o, ID: m.id, PD: m.pd.id, IOVA: Address(m.region.IOVA), Length: m.region.Length, Access: m.region.Access.String(),
		Backing: m.backing, Unshared: m.unshared}
	if m.dm != nil {
		i.DM = m.dm.id
	}
	return i
}

func (q *CQ) info(o Owner) CQInfo {
	return CQInfo{
		Owner: o, ID: q.id, Entries: q.Entries(), Waiting: int(min(q.published-q.ring.loadConsumer(), q.ring.size())),
		Users: q.users, Overrun: q.overrun, Notified: int(q.counted),
	}
}

func (m *MW) info(o Owner) MWInfo {
	i := MWInfo{Owner: o, ID: m.id, PD: m.pd.id, Type: m.window.Type().String(), QPN: m.window.QPN()}
	if r := m.window.Bound(); r != nil {
		i.Bound, i.IOVA, i.Length, i.Access = true, Address(r.IOVA), r.Length, r.Access.String()
	}
	return i
}

func (s *SRQ) info(o Owner) SRQInfo {
	r := s.ring
	posted := int(min(r.loadProducer()-r.consumerIndex, r.size()))
	i := SRQInfo{Owner: o, ID: s.id, PD: s.pd.id, Entries: int(r.size()), MaxSGE: r.maxSGE, Posted: posted, Limit: r.limit,
		Users: s.users, Number: s.num}
	if s.cq != nil {
		i.CQ = s.cq.id
	}
	return i
}

func (a *AH) info(o Owner, context uint64) AHInfo {
	p := a.path
	return AHInfo{o, a.id, a.pd.id, pathInfo(p), p.TClass, p.HopLimit, p.FlowLabel, context | uint64(a.number)}
}

func (g *group) info(gid GID) GroupInfo {
	i := GroupInfo{Addr: gid.Addr()}
	for _, q := range g.qps {
		i.QPs = append(i.QPs, q.qpn)
	}
	return i
}
