package sim

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"time"

	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A Profile says how rough a run is.
type Profile struct {
	Pairs      int     // connected pairs of queue pairs
	PerQueue   int     // work requests that each queue pair posts
	MaxMessage int     // bytes
	Loss       float64 // chance of a packet to be dropped
	Duplicate  float64
	Reorder    float64
	Corrupt    float64
	Delay      float64
	Errors     float64 // chance of a work request to be wrong on purpose
	Deregister bool    // a region goes away in mid-run
	LateRecv   float64 // chance, each time, that a receive is not posted yet
}

// memory returns the bytes that a program needs: per work request at most one place that is
// written, and one receive, on either side.
func (p *Profile) memory() int {
	return sourceSize + 4*p.Pairs*(p.PerQueue+4)*(p.MaxMessage+32)&^7
}

// Result is what a run came to.
type Result struct {
	Profile     Profile
	Hash        uint64 // of every frame and completion, in order
	Frames      uint64
	Completions int
	Failed      int // queue pairs that ended in error
	Virtual     time.Duration
	Counters    [2]nic.Counters
}

// A world is one run.
type world struct {
	rnd      *rand.Rand
	profile  Profile
	engine   *nic.Engine
	now      int64
	programs [2]*program
	pairs    []*pair
	hash     hash.Hash64
	frames   uint64
	complete int
}

// ProfileOf draws the profile of a seed: from a perfect network to a terrible one.
func ProfileOf(seed uint64) Profile {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Profile{Pairs: 1 + r.IntN(4), PerQueue: 5 + r.IntN(60), MaxMessage: 1 << (4 + r.IntN(12)), LateRecv: r.Float64() / 2}
	p.PerQueue = min(p.PerQueue, max(4, 1<<20/(p.Pairs*p.MaxMessage))) // bounds memory, and so time
	if r.IntN(4) > 0 {                                                 // one in four runs has a perfect network
		rough := r.Float64() * r.Float64() * 0.3
		for _, f := range []*float64{&p.Loss, &p.Duplicate, &p.Reorder, &p.Corrupt, &p.Delay} {
			if r.IntN(3) > 0 {
				*f = rough * r.Float64()
			}
		}
	}
	if r.IntN(3) == 0 {
		p.Errors = 0.03
	}
	p.Deregister = r.IntN(8) == 0
	return p
}

// Run plays the seed's run to its end. An error names the invariant that did not hold.
func Run(seed uint64) (*Result, error) { return RunProfile(seed, ProfileOf(seed)) }

// RunProfile is Run with a profile of the caller's.
func RunProfile(seed uint64, p Profile) (*Result, error) {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 2)), profile: p, now: 1, hash: fnv.New64a()}
	var err error
	if w.engine, err = nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: seed + 1, ReadArena: 1 << 20}); err != nil {
		return nil, err
	}
	defer w.engine.Close()
	if err := w.build(seed); err != nil {
		return nil, err
	}
	if err := w.play(); err != nil {
		return nil, err
	}
	if err := w.judge(); err != nil {
		return nil, err
	}
	r := &Result{Profile: p, Hash: w.hash.Sum64(), Frames: w.frames, Completions: w.complete, Virtual: time.Duration(w.now)}
	for i, g := range w.programs {
		r.Counters[i] = g.dev.Counters()
	}
	for _, x := range w.pairs {
		for _, e := range x.ends {
			if e.qp.State() == transport.Error {
				r.Failed++
			}
		}
	}
	return r, nil
}

// build makes two NICs with a fault program each, a program on each, and the pairs.
func (w *world) build(seed uint64) error {
	fabric := wire.NewFabric()
	for i := range w.programs {
		addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24)
		mac := [6]byte{2, 0, 0, 0, 0, byte(i + 1)}
		var link wire.Link = fabric.Port(w.engine, addr.Addr())
		link = &watched{Link: wire.NewFault(&watched{Link: link, w: w, sent: true}, w.faults(seed+uint64(i))), w: w}
		d, err := w.engine.AddDevice(nic.DeviceConfig{Name: fmt.Sprint("sim", i), Link: link,
			Iface: wire.StaticInterface("sim", mac, 9000, addr)})
		if err != nil {
			return err
		}
		if w.programs[i], err = w.newProgram(d); err != nil {
			return err
		}
	}
	for range w.profile.Pairs {
		if err := w.newPair(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) faults(seed uint64) *wire.FaultProgram {
	p := &wire.FaultProgram{Seed: seed}
	add := func(chance float64, r wire.FaultRule) {
		if chance > 0 {
			r.Chance = chance
			p.Rules = append(p.Rules, r)
		}
	}
	add(w.profile.Loss, wire.FaultRule{Action: wire.FaultDrop})
	add(w.profile.Corrupt, wire.FaultRule{Action: wire.FaultCorrupt})
	add(w.profile.Duplicate, wire.FaultRule{Action: wire.FaultDuplicate})
	add(w.profile.Reorder, wire.FaultRule{Action: wire.FaultReorder, By: 1 + w.rnd.IntN(5), Within: 100 * time.Microsecond})
	add(w.profile.Delay, wire.FaultRule{Action: wire.FaultDelay, Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond})
	add(w.profile.Delay, wire.FaultRule{Action: wire.FaultMark})
	return p
}

// A watched link takes part in the run's hash: with what the NIC got from below, or with what
// went to the fabric.
type watched struct {
	wire.Link
	w    *world
	sent bool
	got  uint64 // frames received
}

func (l *watched) Send(now int64, batch []wire.TxFrame) (int, error) {
	n, err := l.Link.Send(now, batch)
	if l.sent {
		for i := range batch[:n] {
			l.w.note(uint64(now), uint64(batch[i].Len))
			l.w.hash.Write(batch[i].Head[:batch[i].HeadLen])
		}
		l.w.frames += uint64(n)
	}
	return n, err
}

func (l *watched) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	l.got += uint64(n)
	return n, err
}

// note adds words to the hash.
func (w *world) note(words ...uint64) {
	var b [8]byte
	for _, v := range words {
		binary.LittleEndian.PutUint64(b[:], v)
		w.hash.Write(b[:])
	}
}

// attrs draws the attributes that both ends of a pair agree on.
func (w *world) attrs() nic.QPAttr {
	mtus := []int{256, 512, 1024, 2048, 4096}
	psn := func() uint32 {
		if w.rnd.IntN(3) == 0 {
			return packet.PSNMask - uint32(w.rnd.IntN(100)) // about to wrap
		}
		return w.rnd.Uint32() & packet.PSNMask
	}
	rd := uint8(1 + w.rnd.IntN(16))
	return nic.QPAttr{
		Attr: transport.Attr{PathMTU: mtus[w.rnd.IntN(len(mtus))], RQPSN: psn(), SQPSN: psn(), Access: everyAccess,
			MaxRDAtomic: rd, MaxDestRDAtomic: rd, MinRNRTimer: uint8(1 + w.rnd.IntN(14)), Timeout: uint8(8 + w.rnd.IntN(6)),
			RetryCount: 7, RNRRetry: 7, PKey: packet.DefaultPKey},
		AV:   nic.AddressVector{SGIDIndex: 1, Port: 1},
		Port: 1,
	}
}

func (w *world) newPair() error {
	x := &pair{}
	for i := range x.ends {
		q, err := w.programs[i].newQueue()
		if err != nil {
			return err
		}
		x.ends[i] = &end{queue: q, w: w, posts: w.profile.PerQueue}
	}
	a := w.attrs()
	b := a
	b.SQPSN, b.RQPSN = a.RQPSN, a.SQPSN
	for i, at := range []nic.QPAttr{a, b} {
		me, peer := x.ends[i], x.ends[1-i]
		me.peer, me.mtu = peer, a.PathMTU
		at.DestQPN, at.AV.DGID = peer.qp.QPN(), peer.dev.GIDs()[1].GID
		if err := me.connect(at); err != nil {
			return err
		}
		if err := me.reserve(); err != nil {
			return err
		}
	}
	w.pairs = append(w.pairs, x)
	return nil
}

// play alternates between programs that post and poll, and the engine, until all is done.
func (w *world) play() error {
	const patience = 4_000_000
	deregisterAt := -1
	if w.profile.Deregister {
		deregisterAt = 20 + w.rnd.IntN(200)
	}
	quiet := false
	for round := range patience {
		if round == deregisterAt {
			if err := w.deregister(); err != nil {
				return err
			}
		}
		posted := false
		if quiet || w.rnd.IntN(3) == 0 {
			posted = w.post(quiet)
		}
		w.now += int64(1 + w.rnd.IntN(2000))
		next, busy := w.engine.Step(w.now)
		if err := w.poll(); err != nil {
			return err
		}
		if busy || posted || next != 0 && next <= w.now {
			quiet = false
			continue
		}
		if !quiet { // everybody posts what is left before time makes a leap
			quiet = true
			continue
		}
		quiet = false
		if next == 0 {
			return nil
		}
		w.now = next
	}
	return fmt.Errorf("invariant 2: the run finds no end after %d rounds, at %v", patience, time.Duration(w.now))
}

// deregister takes the memory of one program away from under the traffic.
func (w *world) deregister() error {
	p := w.programs[w.rnd.IntN(2)]
	err := p.ctx.DeregMR(p.mr)
	p.mr = nil
	return err
}
