package netsim

import (
	"fmt"
	"net/netip"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A host is a NIC with its engine, and the program that uses it.
type host struct {
	// What each step uses comes first, in a cache line.
	sim     *simulation
	engine  *nic.Engine
	link    link
	stepped int64 // when it was stepped last
	due     int64 // when a quiet host has something to do if nothing wakes it before; 0: never
	quiet   bool  // the next step would have nothing to do, and is left out
	rung    bool  // the program has posted something since the last step
	news    bool  // there are completions to poll, or the engine has closed the context

	client *nictest.Client
	pd     *nic.PD
	cq     *nictest.CQ // armed, unless there is news
	mr     *nic.MR
	killed error                  // why the engine has closed the context
	conns  map[uint32]*connection // by number of the queue pair
	idle   map[peer][]*connection // without a flow

	_ [8]byte // the size is a multiple of a cache line
}

// A peer is a NIC and the priority of what is sent to it.
type peer struct {
	nic      int
	priority uint8
}

// A connection is a queue pair of a host and the one to which it sends.
type connection struct {
	host   *host
	to     *host
	peer   peer
	qp     *nictest.QP
	flow   *flow
	posted int64 // bytes of flow
	broken bool  // the queue pair is in error, and not used again
}

// Sizes of a host.
const (
	messageSize = 64 << 10 // of the WRITEs of a flow
	sendDepth   = 16       // WRITEs of a queue pair that are posted
	cqEntries   = 1024     // more than complete in a step, in which a NIC receives some 400 frames
	readArena   = 1 << 16
)

func (sim *simulation) newHost(i int) error {
	h := &sim.hosts[i]
	*h = host{sim: sim, conns: map[uint32]*connection{}, idle: map[peer][]*connection{}, link: link{shared: sim.shared, nic: int32(i)}}
	var err error
	if h.engine, err = nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: sim.seed + 1 + uint64(i), ReadArena: readArena, Buffers: sim.buffers}); err != nil {
		return err
	}
	name := sim.network.NICName(i)
	d, err := h.engine.AddDevice(nic.DeviceConfig{Name: name, Link: &h.link, Congestion: sim.topology.NIC.Congestion,
		Rate:  sim.network.NICPort(i).Rate,
		Iface: wire.StaticInterface(name, nicMAC(i), linkMTU, netip.PrefixFrom(nicAddr(i), 8))})
	if err != nil {
		return err
	}
	if h.client, err = nictest.Open(d, nic.ContextOptions{Comm: "sim", Events: (*events)(h)}); err != nil {
		return err
	}
	if h.pd, err = h.client.Context.AllocPD(); err != nil {
		return err
	}
	if h.cq, err = h.client.CreateCQ(cqEntries); err != nil {
		return err
	}
	h.cq.OnNotify = func() { h.news = true }
	h.cq.Arm(false)
	h.mr, err = h.client.Context.RegMR(h.pd, sim.shared.mapped, 0, uint64(len(sim.shared.memory)),
		ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead)
	return err
}

// nic returns the number of the NIC.
func (h *host) nic() int { return int(h.link.nic) }

// events receives the events of a host's context.
type events host

func (*events) AsyncEvent(nic.Event)  {}
func (e *events) Killed(reason error) { e.killed, e.news = reason, true }

// connection returns a connection without a flow to another host.
func (h *host) connection(to *host, priority uint8) (*connection, error) {
	key := peer{to.nic(), priority}
	if l := h.idle[key]; len(l) > 0 {
		c := l[len(l)-1]
		h.idle[key] = l[:len(l)-1]
		return c, nil
	}
	for _, end := range []*host{h, to} {
		end.leaveOut()
	}
	c := &connection{host: h, to: to, peer: key}
	var err error
	if c.qp, err = h.newQP(sendDepth); err != nil {
		return nil, err
	}
	far, err := to.newQP(1)
	if err != nil {
		return nil, err
	}
	if err := h.connect(c.qp, to, far, priority); err != nil {
		return nil, err
	}
	h.conns[c.qp.QPN()] = c
	h.sim.qps += 2
	return c, to.connect(far, h, c.qp, priority)
}

func (h *host) newQP(depth int) (*nictest.QP, error) {
	return h.client.CreateQP(nic.QPInit{Type: ib.QPTypeRC, PD: h.pd, SendCQ: h.cq.CQ, RecvCQ: h.cq.CQ,
		Caps: nic.Caps{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
}

// ect0 are the ECN bits of an ECN-capable packet without a mark (RFC 3168).
const ect0 = 2

func (h *host) connect(q *nictest.QP, to *host, far *nictest.QP, priority uint8) error {
	o := &h.sim.topology.NIC
	return q.Connect(nic.QPAttr{
		QPAttr: ib.QPAttr{PathMTU: o.MTU, DestQPN: far.QPN(), Access: ib.AccessRemoteWrite | ib.AccessRemoteRead, MaxRDAtomic: 1,
			MaxDestRDAtomic: 1, MinRNRTimer: 1, Timeout: o.Timeout, RetryCount: 7, RNRRetry: 7, PKey: packet.DefaultPKey},
		AV:   nic.AddressVector{DGID: to.client.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1, TClass: priority<<5 | ect0},
		Port: 1,
	})
}

// post posts what there is to send and room for.
func (c *connection) post() {
	f := c.flow
	any := false
	for c.qp.SendRoom() > 0 && (f.Size == 0 || c.posted < f.Size) {
		n := int64(messageSize)
		if f.Size != 0 {
			n = min(n, f.Size-c.posted)
		}
		c.qp.PutSend(&transport.SendWR{ID: uint64(n), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RKey: c.to.mr.RKey(),
			SGEs: []transport.SGE{{Addr: 0, Length: uint32(n), LKey: c.host.mr.LKey()}}})
		c.posted += n
		any = true
	}
	if any {
		c.qp.Publish()
		c.host.rung = true
		c.host.wakeNow()
	}
}

// poll handles the completions of the host, if there are any.
func (h *host) poll() error {
	if !h.news {
		return nil
	}
	for {
		w, ok := h.cq.Poll()
		if !ok {
			h.news = h.killed != nil
			h.cq.Arm(false)
			return h.killed
		}
		c := h.conns[w.QPN]
		if c != nil && c.broken {
			continue // flushed
		}
		if c == nil || c.flow == nil {
			return fmt.Errorf("%s: completion %v of queue pair %#x, which has no flow", h.sim.network.NICName(h.nic()), w.Status, w.QPN)
		}
		f := c.flow
		if w.Status != ib.WCSuccess {
			f.failed = w.Status
			h.sim.end(f)
			c.flow, c.broken = nil, true
			continue
		}
		f.add(h.sim, int64(w.WRID))
		if f.Size != 0 && f.acked == f.Size {
			h.sim.end(f)
			c.flow, c.posted = nil, 0
			h.idle[c.peer] = append(h.idle[c.peer], c)
			continue
		}
		c.post()
	}
}
