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

// A parlour is a program on a NIC whose queue pairs are talkers.
type parlour struct {
	*program
	talkers []*talker
	free    []span // receive buffers of the shared queue
}

// A talker is a UC or UD queue pair, what it said, and what it heard. Each message tells who
// says it, which it is and how long: whoever hears it knows what it has to be.
type talker struct {
	*queue
	w      *world
	in     *parlour
	id     int
	kind   ib.QPType
	peer   *talker // UC
	member bool    // UD: attached to the group

	posts   int // left to say
	said    []saying
	done    int  // of said
	failing bool // an error completion was seen: the queue pair is in SQE
	heard   int

	recvs  *recvPool
	free   *[]span // receive buffers
	sayAt  []span  // where each message is said from
	hearAt []span  // UC: where the peer's WRITEs go
}

// A saying is a send work request.
type saying struct {
	op       ib.WROpcode
	n        int
	to       *talker // nil: the group
	signaled bool
	bad      bool // wrong on purpose
	deaf     bool // the Q_Key is wrong: nobody may hear it
}

const (
	mostSaid   = 30   // messages of one talker
	longest    = 2048 // bytes of a message
	shortest   = 12   // what tells which message it is
	buffers    = 16   // receives of one queue
	untouched  = 0xa5 // what nobody has written to
	talkQKey   = 0x1234
	groupAH    = 1000
	groupOfSim = "239.0.0.1"
)

// letter is byte k of message seq of a talker.
func letter(id, seq, n, k int) byte {
	if k < shortest {
		return byte([3]int{id, seq, n}[k/4] >> (8 * (k % 4)))
	}
	return byte((uint32(id)*2654435761 + uint32(seq)*40503 + uint32(k)*131) >> 5)
}

func (w *world) talkers() (l []*talker) {
	for _, p := range w.parlours {
		l = append(l, p.talkers...)
	}
	return l
}

// buildTalkers makes the queue pairs of UC and UD and brings them to RTS.
func (w *world) buildTalkers() error {
	if w.profile.UC+w.profile.UD == 0 {
		return nil
	}
	for _, g := range w.programs {
		p, err := w.newParlour(g.Device)
		if err != nil {
			return err
		}
		w.parlours = append(w.parlours, p)
	}
	for i := range w.profile.UC {
		var ends [2]*talker
		for k := range ends {
			t, err := w.newTalker(w.parlours[(i+k)%len(w.parlours)], ib.QPTypeUC)
			if err != nil {
				return err
			}
			ends[k] = t
		}
		if err := connectTalkers(w, ends); err != nil {
			return err
		}
	}
	for i := range w.profile.UD {
		t, err := w.newTalker(w.parlours[i%len(w.parlours)], ib.QPTypeUD)
		if err != nil {
			return err
		}
		if err := t.toUD(w.talk.IntN(3) > 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) newParlour(d *nic.Device) (*parlour, error) {
	k := len(w.programs)
	n := 2*((w.profile.UC+k-1)/k) + (w.profile.UD+k-1)/k // they take turns
	size := n*(2*mostSaid*(longest+8)+buffers*(longest+packet.GRHLen+16)) + buffers*(longest+64) + 64
	p := &parlour{program: &program{mem: nic.NewPage(size), drained: map[*nic.QP]bool{}}}
	for i := range p.mem {
		p.mem[i] = untouched
	}
	if err := p.open(d, cqEntries, w.profile.SharedRecv); err != nil {
		return nil, err
	}
	for i, g := range append(w.programs, nil) {
		number, dst := uint32(i+1), nic.GIDOf(netip.MustParseAddr(groupOfSim))
		if g != nil {
			dst = g.Device.GIDs()[1].GID
		} else {
			number = groupAH
		}
		av := nic.AddressVector{DGID: dst, SGIDIndex: 1, Port: 1}
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

func (w *world) newTalker(p *parlour, kind ib.QPType) (*talker, error) {
	shared := w.profile.SharedRecv && w.talk.IntN(2) == 0
	q, err := p.newQueueOf(kind, w.profile.Depth, shared)
	if err != nil {
		return nil, err
	}
	t := &talker{queue: q, w: w, in: p, id: len(w.talkers()) + 1, kind: kind, posts: w.talk.IntN(mostSaid + 1), recvs: new(recvPool)}
	t.free = new([]span)
	if shared {
		t.recvs, t.free = &p.pool, &p.free
	}
	for range mostSaid {
		from, _ := p.take(longest)
		to, _ := p.take(longest)
		t.sayAt, t.hearAt = append(t.sayAt, from), append(t.hearAt, to)
	}
	p.talkers = append(p.talkers, t)
	return t, nil
}

func connectTalkers(w *world, ends [2]*talker) error {
	mtu := []int{256, 512, 1024, 2048, 4096}[w.talk.IntN(5)]
	psn := [2]uint32{w.talk.Uint32() & packet.PSNMask, packet.PSNMask - uint32(w.talk.IntN(20))}
	for i, t := range ends {
		t.peer = ends[1-i]
		a := nic.QPAttr{
			QPAttr: ib.QPAttr{PathMTU: mtu, SQPSN: psn[i], RQPSN: psn[1-i], DestQPN: t.peer.QPN(), Access: everyAccess},
			AV:     nic.AddressVector{DGID: t.peer.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1}, Port: 1,
		}
		if err := t.Connect(a); err != nil {
			return err
		}
	}
	return nil
}

func (t *talker) toUD(member bool) error {
	a := nic.QPAttr{QPAttr: ib.QPAttr{QKey: talkQKey}, Port: 1}
	if err := t.Connect(a); err != nil {
		return err
	}
	if t.member = member; !member {
		return nil
	}
	return t.Context.AttachMcast(t.QP.QP, nic.GIDOf(netip.MustParseAddr(groupOfSim)))
}

// speak lets talkers post receives and messages; all that has room where everybody waits.
func (w *world) speak(all bool) (posted bool, err error) {
	for _, t := range w.talkers() {
		if !all && w.talk.IntN(3) > 0 {
			continue
		}
		for t.recv.Room() > 0 && len(t.recvs.works)-t.recvs.completed < buffers && (all || w.talk.Float64() >= w.profile.LateRecv) {
			t.postHearing()
			posted = true
		}
		if t.failing && t.done == len(t.said) {
			t.failing = false
			a := nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSRTS, CurState: ib.QPSSQE}}
			if err := t.Modify(&a, ib.QPMaskState|ib.QPMaskCurState); err != nil {
				return posted, fmt.Errorf("talker %d: %w", t.id, err)
			}
		}
		for t.posts > 0 && t.SendRoom() > 0 && (all || w.talk.IntN(3) > 0) {
			t.posts--
			t.say()
			posted = true
		}
	}
	return posted, nil
}

// postHearing posts a receive, now and then one that is too short for most messages.
func (t *talker) postHearing() {
	n := longest + packet.GRHLen
	if t.w.talk.Float64() < t.w.profile.Errors {
		n = packet.GRHLen + t.w.talk.IntN(100)
	}
	var to span
	if l := *t.free; len(l) > 0 {
		to, *t.free = l[len(l)-1], l[:len(l)-1]
	} else {
		to, _ = t.take(longest + packet.GRHLen)
	}
	to.n = n
	t.recv.PostRecv(recvID|uint64(len(t.recvs.works)), t.cut(to))
	t.recvs.works = append(t.recvs.works, recvWork{to: to})
}

// cut makes a list of one or two elements of a span.
func (t *talker) cut(s span) (l []transport.SGE) {
	if n := t.w.talk.IntN(s.n + 1); t.w.talk.IntN(2) == 0 {
		l = append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(n), LKey: t.key})
		s.off, s.n = s.off+n, s.n-n
	}
	return append(l, transport.SGE{Addr: uint64(s.off), Length: uint32(s.n), LKey: t.key})
}

// say draws a message and posts it.
func (t *talker) say() {
	r := t.w.talk
	seq := len(t.said)
	s := saying{op: []ib.WROpcode{ib.WRSend, ib.WRSendWithImm}[r.IntN(2)], n: shortest + r.IntN(longest-shortest+1),
		signaled: r.IntN(4) > 0, to: t.peer, bad: r.Float64() < t.w.profile.Errors}
	from := span{t.sayAt[seq].off, s.n}
	for k := range s.n {
		t.mem[from.off+k] = letter(t.id, seq, s.n, k)
	}
	wr := transport.SendWR{ID: uint64(seq), Imm: uint32(seq)}
	if t.kind == ib.QPTypeUD {
		t.address(&s, &wr)
	} else if r.IntN(2) == 0 {
		s.op -= ib.WRSend - ib.WRRDMAWrite
		wr.RemoteAddr, wr.RKey = uint64(t.peer.hearAt[seq].off), t.peer.mr.RKey()
	}
	wr.Opcode = s.op
	wr.SGEs = t.cut(from)
	if s.bad {
		wr.SGEs[len(wr.SGEs)-1].LKey ^= 0x5a
		s.bad = wr.SGEs[len(wr.SGEs)-1].Length > 0
	} else if s.n <= queueCaps.MaxInline && r.IntN(2) == 0 {
		wr.Flags, wr.Inline = ib.SendInline, t.mem[from.off:][:s.n]
	}
	if s.signaled {
		wr.Flags |= ib.SendSignaled
	}
	t.said = append(t.said, s)
	t.PostSend(&wr)
}

// address draws whom a datagram is for.
func (t *talker) address(s *saying, wr *transport.SendWR) {
	var others []*talker
	for _, o := range t.w.talkers() {
		if o.kind == ib.QPTypeUD {
			others = append(others, o) // itself, too
		}
	}
	r := t.w.talk
	wr.RemoteQKey = []uint32{talkQKey, 1 << 31}[r.IntN(2)]
	if s.deaf = r.Float64() < t.w.profile.Errors; s.deaf {
		wr.RemoteQKey = talkQKey + 1
	}
	if r.IntN(3) == 0 {
		wr.Dest, wr.RemoteQPN = uint32(groupAH), 0xffffff
		return
	}
	s.to = others[r.IntN(len(others))]
	wr.RemoteQPN = s.to.QPN()
	for i, p := range t.w.parlours {
		if p == s.to.in {
			wr.Dest = uint32(i + 1)
		}
	}
}

// listen takes all completions of the talkers and holds each against what was said.
func (w *world) listen() error {
	for i, p := range w.parlours {
		if p.killed != nil {
			return fmt.Errorf("parlour %d lost its context: %w", i, p.killed)
		}
		for {
			c, ok := p.cq.Poll()
			if !ok {
				break
			}
			w.complete++
			w.note(uint64(w.now), uint64(100+i), c.WRID, uint64(c.Status), uint64(c.ByteLen))
			t := p.find(c.QPN)
			if t == nil {
				return fmt.Errorf("invariant 1: completion of QP %#x, which parlour %d does not have", c.QPN, i)
			}
			var err error
			if c.WRID >= recvID {
				err = t.hears(int(c.WRID-recvID), &c)
			} else {
				err = t.spoke(int(c.WRID), &c)
			}
			if err != nil {
				return fmt.Errorf("at %d ns, %v talker %d: %w", w.now, t.kind, t.id, err)
			}
		}
	}
	return nil
}

func (p *parlour) find(qpn uint32) *talker {
	for _, t := range p.talkers {
		if t.QPN() == qpn {
			return t
		}
	}
	return nil
}

// spoke judges the completion of a send, and writes over the memory of all that are complete:
// that is the program's again.
func (t *talker) spoke(id int, c *nictest.WC) error {
	if id < t.done || id >= len(t.said) {
		return fmt.Errorf("invariant 1: send %d completed, %d are complete and %d posted", id, t.done, len(t.said))
	}
	if err := t.silently(id); err != nil {
		return err
	}
	s := &t.said[id]
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
	t.reuse(id)
	return nil
}

// silently lets unsignaled sends before the one numbered end be complete.
func (t *talker) silently(end int) error {
	for ; t.done < end; t.done++ {
		if s := &t.said[t.done]; s.signaled || s.bad || t.failing {
			return fmt.Errorf("invariant 1: no completion of send %d", t.done)
		}
		t.reuse(t.done)
	}
	return nil
}

func (t *talker) reuse(id int) {
	m := t.mem[t.sayAt[id].off:][:t.said[id].n]
	for k := range m {
		m[k] = 0xee
	}
}
