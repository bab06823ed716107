package sim

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"softroce/internal/ib"
	"softroce/internal/network"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
)

// A Profile is the size of a run and the chances of its faults.
type Profile struct {
	NICs        int           // 2 to 254
	Pairs       int           // connected pairs of queue pairs
	PerQueue    int           // work requests per queue pair
	Operations  []ib.WROpcode // to draw from
	OneWay      bool          // only one queue pair of each pair posts them
	MaxMessage  int           // bytes
	Source      int           // bytes at the start of each memory, random, that no work request changes
	Depth       int           // slots of a send queue
	RetryCount  uint8         // retry_cnt
	RNRRetry    uint8         // rnr_retry
	SharedRecv  bool          // programs have SRQs, which half of the queue pairs use
	SmallCQ     bool          // completion queues may overrun
	RoCEv1      bool          // packets are of RoCE v1
	Loss        float64       // chance that a packet is dropped
	Duplicate   float64
	Reorder     float64
	Corrupt     float64
	Delay       float64
	Errors      float64       // chance that a work request is invalid on purpose
	LateRecv    float64       // chance, at each opportunity, that a receive is not posted yet
	RecvPause   time.Duration // longest time at the start without posted receives
	Disruptions int           // number of disruptions: see disruption.go
	Windows     bool          // use memory windows: see window.go
	XRC         int           // how many of the Pairs use XRC: see xrc.go
	UC, UD      int           // connected pairs of UC, and UD queue pairs: see unreliable.go

	// The network: see network.go.
	Engines   bool          // each NIC has an engine of its own
	Slices    int           // engines that drive each NIC together: see order; 0 and 1: one
	Stalls    int           // times that an engine is not stepped for a while
	Rate      float64       // of the cables, in Gbit/s; 0: unlimited
	Buffer    time.Duration // time until a full send buffer of a cable is empty
	MTU       int           // path MTU; 0: drawn for each pair
	LongReads int           // READs of a queue pair that are longer than MaxMessage: about Source bytes
	Switches  *Switches     // between the NICs; nil: none. See switches.go

	Blocks *Blocks // copies of memory that take long; nil: the NICs map all memory. See blocked.go

	Tap wire.FrameSink // receives the frames at the port of the first NIC, if it is not nil
}

// memory returns the size of a program's memory: for each work request at most one target and one
// receive on either side, and a buffer that is sent.
func (p *Profile) memory() int {
	endpoints := min(p.Pairs, 4*p.Pairs/p.NICs+16) // of one program; pairs are spread at random
	each := 5*(p.PerQueue+8)*(p.MaxMessage+32) + p.LongReads*(p.Source+32)
	return p.Source + endpoints*each*(1+min(p.Disruptions, 1))&^7
}

// Result is the outcome of a run.
type Result struct {
	Profile                            Profile
	Hash                               uint64 // of every frame and completion, in order
	Frames                             uint64
	Completions                        int
	Failed                             int // queue pairs in error at the end
	Virtual                            time.Duration
	Overflows                          int // completion queues that have overrun
	Counters                           []nic.Counters
	Sent, Needed                       int                 // packets with data or an atomic's result: of RC and XRC, and those of completed work
	UnreliableSent, UnreliableReceived int                 // messages of UC and UD
	Hops                               uint64              // frames that ports of the network of switches have sent
	Ports                              network.PortStats   // Marked, Dropped, Lost and PausesSent of all its ports
	Deadlocks                          []*network.Deadlock // each of which was ended
	Blocked, BlockedElsewhere          int                 // batches of copies that took long: in the engine's thread, and those for other threads
	Bystander                          int                 // messages of programs whose memory does not block, for which batches have waited
}

// A simulation is one run.
type simulation struct {
	rnd           *rand.Rand
	profile       Profile
	engines       []*nic.Engine
	ports         [][]*hashingLink // of the NICs, by slice
	stalled       stall
	working       bool // the last engines that were stepped had work
	now           int64
	programs      []*program
	unreliable    []*unreliableProgram
	unreliableRnd *rand.Rand // for the unreliable programs
	pairs         []*pair    // a pair that was connected again comes after the one it replaces
	linkDownUntil int64      // all frames are lost before this time
	fabric        *wire.Fabric
	network       *network.Network // of switches, in fabric; nil: none
	deadlocks     []*network.Deadlock
	blocked       *blocked // nil: the NICs map all memory
	atRest        uint64   // Hops when there was no deadlock
	outOfMemory   error    // set if the profile's memory is too small
	hash          hash.Hash64
	frames        uint64
	complete      int
}

// ProfileOf draws the profile of a seed. Its network ranges from perfect to very lossy.
func ProfileOf(seed uint64) Profile {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Profile{Operations: operations, Source: 1 << 17, NICs: 2 + r.IntN(4)/3, RetryCount: 7, RNRRetry: 7, Depth: 64, Pairs: 1 + r.IntN(4), PerQueue: 5 + r.IntN(60), MaxMessage: 1 << (4 + r.IntN(12)), LateRecv: r.Float64() / 2}
	p.PerQueue = min(p.PerQueue, max(4, 1<<20/(p.Pairs*p.MaxMessage))) // bounds memory, and so the time of a run
	if r.IntN(4) > 0 {                                                 // one in four runs has a perfect network
		severity := r.Float64() * r.Float64() * 0.3
		for _, f := range []*float64{&p.Loss, &p.Duplicate, &p.Reorder, &p.Corrupt, &p.Delay} {
			if r.IntN(3) > 0 {
				*f = severity * r.Float64()
			}
		}
	}
	if r.IntN(3) == 0 {
		p.Errors = 0.03
	}
	if r.IntN(3) == 0 {
		p.Depth = 1 << r.IntN(6)
	}
	if r.IntN(6) == 0 {
		p.RetryCount = uint8(r.IntN(7))
	}
	if r.IntN(6) == 0 {
		p.RNRRetry = uint8(r.IntN(7))
	}
	if r.IntN(6) == 0 {
		p.RecvPause = time.Duration(r.IntN(int(20 * time.Millisecond)))
	}
	if r.IntN(3) == 0 {
		p.Disruptions = 1 + r.IntN(4)
	}
	p.SharedRecv = r.IntN(4) == 0
	p.SmallCQ = r.IntN(16) == 0
	if r.IntN(2) == 0 {
		p.UC, p.UD = r.IntN(3), r.IntN(6)
	}
	p.Windows = r.IntN(3) == 0
	if r.IntN(3) == 0 {
		p.XRC = 1 + r.IntN(p.Pairs)
	}
	p.drawNetwork(r)
	p.RoCEv1 = r.IntN(4) == 0
	if r := rand.New(rand.NewPCG(seed, 4)); r.IntN(3) == 0 && !p.OneWay {
		p.drawSwitches(r)
	}
	if r := rand.New(rand.NewPCG(seed, 5)); r.IntN(3) == 0 && p.Switches == nil && !p.OneWay {
		p.Slices, p.Engines = 2+r.IntN(3), false
	}
	if r := rand.New(rand.NewPCG(seed, 6)); r.IntN(4) == 0 && !p.OneWay {
		p.drawBlocks(r)
	}
	return p
}

// Large returns the profile of a run of 200 NICs and 10,000 queue pairs of all kinds, on a network
// with few faults.
func Large() Profile {
	return Profile{Operations: operations, Source: 1 << 17, NICs: 200, Pairs: 4600, XRC: 200, UC: 100, UD: 200, PerQueue: 4, MaxMessage: 256, Depth: 8,
		RetryCount: 7, RNRRetry: 7, SharedRecv: true, Windows: true, Disruptions: 20, LateRecv: 0.3,
		Loss: 0.005, Duplicate: 0.005, Reorder: 0.005, Corrupt: 0.002, Delay: 0.005, Errors: 0.005}
}

// sgid returns the index of the GIDs that queue pairs and address handles use.
func (p *Profile) sgid() int {
	const roceV1 = 32 // behind the GIDs of RoCE v2
	if p.RoCEv1 {
		return roceV1 + 1
	}
	return 1
}

// QPs returns the number of queue pairs that a run starts with.
func (p *Profile) QPs() int { return 2*p.Pairs + 2*p.XRC + 2*p.UC + p.UD }

// Run simulates a seed's run. An error names the invariant that was violated.
func Run(seed uint64) (*Result, error) { return RunProfile(seed, ProfileOf(seed)) }

// RunProfile is Run with the given profile.
func RunProfile(seed uint64, p Profile) (*Result, error) {
	sim := &simulation{rnd: rand.New(rand.NewPCG(seed, 2)), profile: p, unreliableRnd: rand.New(rand.NewPCG(seed, 3)), now: 1, hash: fnv.New64a()}
	defer sim.closeEngines()
	if err := sim.openBlocked(seed); err != nil {
		return nil, err
	}
	defer sim.closeBlocked()
	if err := sim.build(seed); err != nil {
		return nil, err
	}
	if err := sim.run(); err != nil {
		return nil, err
	}
	if err := sim.check(); err != nil {
		return nil, err
	}
	r := &Result{Profile: p, Sent: sim.sent(), Needed: sim.needed(), Failed: sim.failed(), Hash: sim.hash.Sum64(), Frames: sim.frames, Completions: sim.complete, Virtual: time.Duration(sim.now)}
	for _, g := range sim.programs {
		r.Counters = append(r.Counters, g.Device.Counters())
		if g.overflow {
			r.Overflows++
		}
	}
	for _, t := range sim.unreliableQPs() {
		r.UnreliableSent += len(t.sent)
		r.UnreliableReceived += t.received
	}
	if b := sim.blocked; b != nil {
		r.Blocked, r.BlockedElsewhere, r.Bystander = b.began, b.taken-b.began, b.bystander.exchanged
	}
	if sim.network != nil {
		r.Hops, r.Ports, r.Deadlocks = sim.network.Hops(), sim.portStats(), sim.deadlocks
	}
	return r, nil
}

// build creates the NICs, each with a verbs program, and the pairs.
func (sim *simulation) build(seed uint64) error {
	if err := sim.buildNetwork(seed); err != nil {
		return err
	}
	for i := range sim.profile.Pairs {
		if err := sim.newPair(i < sim.profile.XRC); err != nil {
			return err
		}
	}
	if err := sim.buildUnreliable(); err != nil {
		return err
	}
	return sim.buildBystander()
}

// hashWords adds words to the hash.
func (sim *simulation) hashWords(words ...uint64) {
	var b [8]byte
	for _, v := range words {
		binary.LittleEndian.PutUint64(b[:], v)
		sim.hash.Write(b[:])
	}
}

// attrs draws the attributes of a connection.
func (sim *simulation) attrs() nic.QPAttr {
	mtu := []int{256, 512, 1024, 2048, 4096}[sim.rnd.IntN(5)]
	if sim.profile.MTU != 0 {
		mtu = sim.profile.MTU
	}
	psn := func() uint32 {
		if sim.rnd.IntN(3) == 0 {
			return packet.PSNMask - uint32(sim.rnd.IntN(100)) // wraps soon
		}
		return sim.rnd.Uint32() & packet.PSNMask
	}
	rd := uint8(1 + sim.rnd.IntN(16))
	return nic.QPAttr{
		QPAttr: ib.QPAttr{PathMTU: mtu, RQPSN: psn(), SQPSN: psn(), Access: everyAccess,
			MaxRDAtomic: rd, MaxDestRDAtomic: rd, MinRNRTimer: uint8(1 + sim.rnd.IntN(14)), Timeout: sim.timeout(),
			RetryCount: sim.profile.RetryCount, RNRRetry: sim.profile.RNRRetry, PKey: packet.DefaultPKey},
		AV:   nic.AddressVector{SGIDIndex: sim.profile.sgid(), Port: 1, TClass: sim.tclass(sim.rnd)},
		Port: 1,
	}
}

// newPair creates a queue pair on each of two NICs and connects them.
func (sim *simulation) newPair(xrc bool) error {
	var queues [2]*queue
	at := sim.rnd.IntN(len(sim.programs))
	for i := range queues {
		g := sim.programs[(at+i)%len(sim.programs)]
		var err error
		if xrc {
			queues[i], err = g.newXRC(sim.profile.Depth)
		} else {
			queues[i], err = g.newQueue(sim.profile.Depth, sim.profile.SharedRecv && sim.rnd.IntN(2) == 0)
		}
		if err != nil {
			return err
		}
	}
	posts := [2]int{sim.profile.PerQueue, sim.profile.PerQueue}
	if sim.profile.OneWay {
		posts[1] = 0
	}
	return sim.connect(queues, sim.attrs(), posts)
}

// connect takes two queue pairs to RTS. posts is the number of work requests that each will post.
func (sim *simulation) connect(queues [2]*queue, a nic.QPAttr, posts [2]int) error {
	x := &pair{attr: a}
	for i, q := range queues {
		x.endpoints[i] = &endpoint{queue: q, sim: sim, pair: x, posts: posts[i], long: sim.profile.LongReads, recvs: new(recvPool)}
		switch {
		case q.tgt != nil:
			x.endpoints[i].recvs = &q.xpool
		case q.shared:
			x.endpoints[i].recvs = &q.pool
		}
		x.endpoints[i].recvs.endpoints = append(x.endpoints[i].recvs.endpoints, x.endpoints[i])
		if sim.profile.RecvPause > 0 {
			x.endpoints[i].recvPausedUntil = sim.now + sim.rnd.Int64N(int64(sim.profile.RecvPause))
		}
	}
	b := a
	b.SQPSN, b.RQPSN = a.RQPSN, a.SQPSN
	for i, at := range []nic.QPAttr{a, b} {
		me, peer := x.endpoints[i], x.endpoints[1-i]
		me.peer, me.mtu = peer, a.PathMTU
		at.AV.DGID = peer.Device.GIDs()[1].GID
		if err := me.connect(at, peer.queue); err != nil {
			return err
		}
		if err := me.reserve(); err != nil {
			return err
		}
	}
	sim.pairs = append(sim.pairs, x)
	return nil
}

// run alternates between posting, polling and steps of the engine until everything is done.
func (sim *simulation) run() error {
	const maxRounds = 4_000_000
	disruptions, stalls := sim.plan(sim.profile.Disruptions, 20, 300), sim.plan(sim.profile.Stalls, 1, 100)
	idle := false
	for round := range maxRounds {
		for len(disruptions) > 0 && round >= disruptions[0] {
			disruptions = disruptions[1:]
			if err := sim.disruption(); err != nil {
				return err
			}
		}
		for len(stalls) > 0 && round >= stalls[0] {
			stalls = stalls[1:]
			sim.stall()
		}
		if err := sim.resumeDrained(); err != nil {
			return err
		}
		if err := sim.returnCopies(); err != nil {
			return err
		}
		posted := false
		if idle || sim.rnd.IntN(3) == 0 {
			posted = sim.post(idle)
		}
		sent, err := sim.postUnreliable(idle)
		if err != nil {
			return err
		}
		exchanged, err := sim.exchange()
		if err != nil {
			return err
		}
		posted = posted || sent || exchanged
		if sim.outOfMemory != nil {
			return sim.outOfMemory
		}
		sim.now += int64(1 + sim.rnd.IntN(sim.tick()))
		next, busy := sim.step()
		if err := sim.poll(); err != nil {
			return err
		}
		if err := sim.pollUnreliable(); err != nil {
			return err
		}
		if _, err := sim.endDeadlock(false); err != nil {
			return err
		}
		if busy || posted || next != 0 && next <= sim.now || len(sim.drainedEndpoints()) > 0 {
			idle = false
			continue
		}
		if !idle { // post everything before time jumps ahead
			idle = true
			continue
		}
		idle = false
		if ended, err := sim.endDeadlock(true); err != nil {
			return err
		} else if ended {
			continue
		}
		if at := sim.nextResume(); at != 0 && (next == 0 || at < next) {
			next = at
		}
		if next == 0 {
			return sim.pollAll()
		}
		sim.now = max(sim.now, next)
	}
	return fmt.Errorf("invariant 2: the run has not ended after %d rounds, at %v", maxRounds, time.Duration(sim.now))
}

// nextResume returns when the next paused program resumes posting or polling, 0 for none.
func (sim *simulation) nextResume() (at int64) {
	consider := func(t int64) {
		if t > sim.now && (at == 0 || t < at) {
			at = t
		}
	}
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			consider(e.recvPausedUntil)
		}
	}
	for _, p := range sim.programs {
		consider(p.pausedUntil)
	}
	for _, c := range sim.blockedCopies() {
		consider(c.next())
	}
	return at
}
