package sim

import (
	"context"
	"fmt"
	"net/netip"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
	"softroce/transport"
)

// An unreliableProgram is a program whose queue pairs are of UC and UD.
type unreliableProgram struct {
	*program
	qps  []*unreliableQP
	free []span // free receive buffers of the SRQ
}

// An unreliableQP is a UC or UD queue pair, what it has sent, and how much it has received. Each
// message contains its sender, number and length, so that a receiver can check all of it.
type unreliableQP struct {
	*queue
	sim    *simulation
	owner  *unreliableProgram
	id     int
	kind   ib.QPType
	peer   *unreliableQP // UC
	member bool          // UD: attached to the group

	posts    int // messages left to send
	sent     []message
	done     int  // completed sends
	failing  bool // after an error completion: the queue pair is in SQE
	received int

	recvs        *recvPool
	free         *[]span // free receive buffers
	sendBuffers  []span  // buffer of each message
	writeTargets []span  // UC: targets of the peer's WRITEs
}

// A message is a send work request.
type message struct {
	op       ib.WROpcode
	n        int
	to       *unreliableQP // nil: the multicast group
	signaled bool
	bad      bool // invalid on purpose
	badQKey  bool // sent with a wrong Q_Key: no queue pair may receive it
}

const (
	maxMessages    = 30   // most messages of one queue pair
	maxLength      = 2048 // longest message, in bytes
	minLength      = 12   // length of the part that identifies a message, in bytes
	recvBuffers    = 16   // posted receives of one queue
	untouched      = 0xa5 // content of memory that no message was written to
	unreliableQKey = 0x1234
	groupAH        = 1000
	groupAddr      = "239.0.0.1"
)

// payloadByte returns byte k of message seq, of n bytes, of a queue pair.
func payloadByte(id, seq, n, k int) byte {
	if k < minLength {
		return byte([3]int{id, seq, n}[k/4] >> (8 * (k % 4)))
	}
	return byte((uint32(id)*2654435761 + uint32(seq)*40503 + uint32(k)*131) >> 5)
}

func (sim *simulation) unreliableQPs() (l []*unreliableQP) {
	for _, p := range sim.unreliable {
		l = append(l, p.qps...)
	}
	return l
}

// buildUnreliable creates the queue pairs of UC and UD and takes them to RTS.
func (sim *simulation) buildUnreliable() error {
	if sim.profile.UC+sim.profile.UD == 0 {
		return nil
	}
	for _, g := range sim.programs {
		p, err := sim.newUnreliableProgram(g.Device)
		if err != nil {
			return err
		}
		sim.unreliable = append(sim.unreliable, p)
	}
	for i := range sim.profile.UC {
		var qps [2]*unreliableQP
		for k := range qps {
			t, err := sim.newUnreliableQP(sim.unreliable[(i+k)%len(sim.unreliable)], ib.QPTypeUC)
			if err != nil {
				return err
			}
			qps[k] = t
		}
		if err := connectUC(sim, qps); err != nil {
			return err
		}
	}
	for i := range sim.profile.UD {
		t, err := sim.newUnreliableQP(sim.unreliable[i%len(sim.unreliable)], ib.QPTypeUD)
		if err != nil {
			return err
		}
		if err := t.activateUD(sim.unreliableRnd.IntN(3) > 0); err != nil {
			return err
		}
	}
	return nil
}

func (sim *simulation) newUnreliableProgram(d *nic.Device) (*unreliableProgram, error) {
	k := len(sim.programs)
	n := 2*((sim.profile.UC+k-1)/k) + (sim.profile.UD+k-1)/k // queue pairs are spread over the programs in turn
	size := n*(2*maxMessages*(maxLength+8)+recvBuffers*(maxLength+packet.GRHLen+16)) + recvBuffers*(maxLength+64) + 64
	p := &unreliableProgram{program: &program{mem: nic.NewPage(size), drained: map[uint32]bool{}, lastWQE: map[uint32]bool{}}}
	for i := range p.mem {
		p.mem[i] = untouched
	}
	if err := p.open(sim, d, cqEntries, sim.profile.SharedRecv); err != nil {
		return nil, err
	}
	for i, g := range append(sim.programs, nil) {
		number, dst := uint32(i+1), nic.GIDOf(netip.MustParseAddr(groupAddr))
		if g != nil {
			dst = g.Device.GIDs()[1].GID
		} else {
			number = groupAH
		}
		av := nic.AddressVector{DGID: dst, SGIDIndex: sim.profile.sgid(), Port: 1, TClass: sim.tclass(sim.unreliableRnd)}
		var err error
		if av.Path, err = d.ResolvePath(context.Background(), &av); err != nil {
			return nil, err
		}
		if _, err = p.Context.CreateAH(p.pd, number, av); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (sim *simulation) newUnreliableQP(p *unreliableProgram, kind ib.QPType) (*unreliableQP, error) {
	shared := sim.profile.SharedRecv && sim.unreliableRnd.IntN(2) == 0
	q, err := p.newQueueOf(kind, sim.profile.Depth, shared)
	if err != nil {
		return nil, err
	}
	t := &unreliableQP{queue: q, sim: sim, owner: p, id: len(sim.unreliableQPs()) + 1, kind: kind, posts: sim.unreliableRnd.IntN(maxMessages + 1), recvs: new(recvPool)}
	t.free = new([]span)
	if shared {
		t.recvs, t.free = &p.pool, &p.free
	}
	for range maxMessages {
		from, _ := p.alloc(maxLength)
		to, _ := p.alloc(maxLength)
		t.sendBuffers, t.writeTargets = append(t.sendBuffers, from), append(t.writeTargets, to)
	}
	p.qps = append(p.qps, t)
	return t, nil
}

func connectUC(sim *simulation, qps [2]*unreliableQP) error {
	mtu := []int{256, 512, 1024, 2048, 4096}[sim.unreliableRnd.IntN(5)]
	tclass := sim.tclass(sim.unreliableRnd)
	psn := [2]uint32{sim.unreliableRnd.Uint32() & packet.PSNMask, packet.PSNMask - uint32(sim.unreliableRnd.IntN(20))}
	for i, t := range qps {
		t.peer = qps[1-i]
		a := nic.QPAttr{
			QPAttr: ib.QPAttr{PathMTU: mtu, SQPSN: psn[i], RQPSN: psn[1-i], DestQPN: t.peer.QPN(), Access: everyAccess},
			AV:     nic.AddressVector{DGID: t.peer.Device.GIDs()[1].GID, SGIDIndex: sim.profile.sgid(), Port: 1, TClass: tclass}, Port: 1,
		}
		if err := t.Connect(a); err != nil {
			return err
		}
	}
	return nil
}

func (t *unreliableQP) activateUD(member bool) error {
	a := nic.QPAttr{QPAttr: ib.QPAttr{QKey: unreliableQKey}, Port: 1}
	if err := t.Connect(a); err != nil {
		return err
	}
	if t.member = member; !member {
		return nil
	}
	return t.Context.AttachMcast(t.QP.QP, nic.GIDOf(netip.MustParseAddr(groupAddr)))
}

// postUnreliable posts receives and messages; as many as possible with all.
func (sim *simulation) postUnreliable(all bool) (posted bool, err error) {
	for _, t := range sim.unreliableQPs() {
		if !all && sim.unreliableRnd.IntN(3) > 0 {
			continue
		}
		for t.recv.Room() > 0 && len(t.recvs.works)-t.recvs.completed < recvBuffers && (all || sim.unreliableRnd.Float64() >= sim.profile.LateRecv) {
			t.postReceive()
			posted = true
		}
		if t.failing && t.done == len(t.sent) {
			t.failing = false
			a := nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSRTS, CurState: ib.QPSSQE}}
			if err := t.Modify(&a, ib.QPMaskState|ib.QPMaskCurState); err != nil {
				return posted, fmt.Errorf("queue pair %d: %w", t.id, err)
			}
		}
		for t.posts > 0 && t.SendRoom() > 0 && (all || sim.unreliableRnd.IntN(3) > 0) {
			t.posts--
			t.sendMessage()
			posted = true
		}
	}
	return posted, nil
}

// postReceive posts a receive, sometimes one that is too short for most messages.
func (t *unreliableQP) postReceive() {
	n := maxLength + packet.GRHLen
	if t.sim.unreliableRnd.Float64() < t.sim.profile.Errors {
		n = packet.GRHLen + t.sim.unreliableRnd.IntN(100)
	}
	var to span
	if l := *t.free; len(l) > 0 {
		to, *t.free = l[len(l)-1], l[:len(l)-1]
	} else {
		to, _ = t.alloc(maxLength + packet.GRHLen)
	}
	to.n = n
	t.recv.PostRecv(recvID|uint64(len(t.recvs.works)), t.split(to))
	t.recvs.works = append(t.recvs.works, recvWork{to: to})
}

// split returns a span as one or two scatter/gather elements.
func (t *unreliableQP) split(s span) (l []transport.SGE) {
	if n := t.sim.unreliableRnd.IntN(s.n + 1); t.sim.unreliableRnd.IntN(2) == 0 {
		l = append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(n), LKey: t.key})
		s.off, s.n = s.off+n, s.n-n
	}
	return append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(s.n), LKey: t.key})
}

// sendMessage draws a message and posts it.
func (t *unreliableQP) sendMessage() {
	r := t.sim.unreliableRnd
	seq := len(t.sent)
	s := message{op: []ib.WROpcode{ib.WRSend, ib.WRSendWithImm}[r.IntN(2)], n: minLength + r.IntN(maxLength-minLength+1),
		signaled: r.IntN(4) > 0, to: t.peer, bad: r.Float64() < t.sim.profile.Errors}
	from := span{t.sendBuffers[seq].off, s.n}
	for k := range s.n {
		t.mem[from.off+k] = payloadByte(t.id, seq, s.n, k)
	}
	wr := transport.SendWR{ID: uint64(seq), Imm: uint32(seq)}
	if t.kind == ib.QPTypeUD {
		t.drawDestination(&s, &wr)
	} else if r.IntN(2) == 0 {
		s.op -= ib.WRSend - ib.WRRDMAWrite
		wr.RemoteAddr, wr.RKey = uint64(t.peer.writeTargets[seq].off), t.peer.mr.RKey()
	}
	wr.Opcode = s.op
	wr.SGEs = t.split(from)
	if s.bad {
		wr.SGEs[len(wr.SGEs)-1].LKey ^= 0x5a
		s.bad = wr.SGEs[len(wr.SGEs)-1].Length > 0
	} else if s.n <= queueCaps.MaxInline && r.IntN(2) == 0 {
		wr.Flags, wr.Inline = ib.SendInline, t.mem[from.off:][:s.n]
	}
	if s.signaled {
		wr.Flags |= ib.SendSignaled
	}
	t.sent = append(t.sent, s)
	t.PostSend(&wr)
}

// drawDestination draws the destination of a datagram.
func (t *unreliableQP) drawDestination(s *message, wr *transport.SendWR) {
	var candidates []*unreliableQP
	for _, o := range t.sim.unreliableQPs() {
		if o.kind == ib.QPTypeUD {
			candidates = append(candidates, o) // including t itself
		}
	}
	r := t.sim.unreliableRnd
	wr.RemoteQKey = []uint32{unreliableQKey, 1 << 31}[r.IntN(2)]
	if s.badQKey = r.Float64() < t.sim.profile.Errors; s.badQKey {
		wr.RemoteQKey = unreliableQKey + 1
	}
	if r.IntN(3) == 0 {
		wr.Dest, wr.RemoteQPN = uint32(groupAH), 0xffffff
		return
	}
	s.to = candidates[r.IntN(len(candidates))]
	wr.RemoteQPN = s.to.QPN()
	for i, p := range t.sim.unreliable {
		if p == s.to.owner {
			wr.Dest = uint32(i + 1)
		}
	}
}

// pollUnreliable polls all completions of the unreliable programs and checks them.
func (sim *simulation) pollUnreliable() error {
	for i, p := range sim.unreliable {
		if p.killed != nil {
			return fmt.Errorf("unreliable program %d lost its context: %w", i, p.killed)
		}
		for {
			c, ok, err := p.poll()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			sim.complete++
			sim.hashWords(uint64(sim.now), uint64(100+i), c.WRID, uint64(c.Status), uint64(c.ByteLen))
			t := p.find(c.QPN)
			if t == nil {
				return fmt.Errorf("invariant 1: completion of QP %#x, which does not belong to unreliable program %d", c.QPN, i)
			}
			if c.WRID >= recvID {
				err = t.checkReceive(int(c.WRID-recvID), &c)
			} else {
				err = t.checkSend(int(c.WRID), &c)
			}
			if err != nil {
				return fmt.Errorf("at %d ns, %v queue pair %d: %w", sim.now, t.kind, t.id, err)
			}
		}
	}
	return nil
}

func (p *unreliableProgram) find(qpn uint32) *unreliableQP {
	for _, t := range p.qps {
		if t.QPN() == qpn {
			return t
		}
	}
	return nil
}

// checkSend checks the completion of a send, and overwrites the buffers of all sends that are
// complete: the program may reuse them.
func (t *unreliableQP) checkSend(id int, c *nictest.WC) error {
	if id < t.done || id >= len(t.sent) {
		return fmt.Errorf("invariant 1: send %d completed, %d are complete and %d posted", id, t.done, len(t.sent))
	}
	if err := t.completeUnsignaled(id); err != nil {
		return err
	}
	s := &t.sent[id]
	want := ib.WCSuccess
	switch {
	case t.failing:
		want = ib.WCWRFlushErr
	case s.bad:
		want, t.failing = ib.WCLocProtErr, true
	}
	if c.Status != want {
		return fmt.Errorf("send %d ended with %v instead of %v", id, c.Status, want)
	}
	t.done++
	t.overwrite(id)
	return nil
}

// completeUnsignaled marks the unsignaled sends before number end as complete.
func (t *unreliableQP) completeUnsignaled(end int) error {
	for ; t.done < end; t.done++ {
		if s := &t.sent[t.done]; s.signaled || s.bad || t.failing {
			return fmt.Errorf("invariant 1: no completion of send %d", t.done)
		}
		t.overwrite(t.done)
	}
	return nil
}

func (t *unreliableQP) overwrite(id int) {
	m := t.mem[t.sendBuffers[id].off:][:t.sent[id].n]
	for k := range m {
		m[k] = 0xee
	}
}
