package netsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"softroce/capture"
	"softroce/internal/eventqueue"
	"softroce/internal/ib"
	"softroce/internal/network"
	"softroce/internal/suggest"
	"softroce/internal/yamlfile"
	"softroce/nic"
)

// Options are those of a run.
type Options struct {
	Seed     uint64
	Captures []Capture
	Progress *Progress // nil: none
}

// A Capture is a file to which the frames of a port are written.
type Capture struct{ Port, File string }

// Progress says how far a run has come. Another goroutine may read it.
type Progress struct {
	now, end, flows, ended atomic.Int64
	began                  time.Time
}

// NewProgress returns the progress of a run that begins now.
func NewProgress() *Progress { return &Progress{began: time.Now()} }

// String has a bar, the virtual and the real time.
func (p *Progress) String() string {
	now, until, share := p.now.Load(), "", 0.0
	if end := p.end.Load(); end > 0 {
		until, share = " of "+time.Duration(end).String(), float64(now)/float64(end)
	}
	ended, flows := p.ended.Load(), p.flows.Load()
	share = max(share, float64(ended)/float64(max(flows, 1)))
	const width = 20
	full := min(int(share*width), width)
	return fmt.Sprintf("%s%s %v%s simulated in %v; %d of %d flows ended", strings.Repeat("█", full), strings.Repeat("░", width-full),
		time.Duration(now).Round(time.Microsecond), until, time.Since(p.began).Round(time.Second), ended, flows)
}

// A simulation is one run.
type simulation struct {
	topology *Topology
	workload *Workload
	seed     uint64
	network  *network.Network
	hosts    []host
	buffers  *nic.FrameBuffers // of all NICs
	shared   *shared
	flows    []*flow
	starts   []*flow // that wait for their time, in its order
	endless  int     // flows without a size
	left     int     // flows that have not ended
	now      int64
	measured int64             // since when statistics count
	steps    *eventqueue.Queue // of the NICs
	qps      int
	base     counters // when the warm-up ended
	recs     []*recorder
	progress *Progress
	sampler  *sampler
	deadlock *network.Deadlock // that has ended the run
}

// A flow is a Flow and what has become of it.
type flow struct {
	Flow
	from, to int
	pattern  string
	waits    int     // flows that must end before it starts
	then     []*flow // that wait for it

	started bool
	began   int64
	ended   int64 // 0: not yet
	acked   int64 // bytes
	counted int64 // bytes that were acknowledged since the warm-up
	failed  ib.WCStatus
}

func (f *flow) add(sim *simulation, n int64) {
	f.acked += n
	if sim.now >= sim.measured {
		f.counted += n
	}
}

// ErrDeadlock is returned, beside a result, by a run that has ended because of a deadlock of PFC.
var ErrDeadlock = errors.New("PFC deadlock")

// Intervals and limits of a run.
const (
	stepInterval  = 500    // ns between two steps of a NIC: it notices late what happens meanwhile
	blockedPoll   = 20_000 // ns after which a NIC whose port is full is stepped at the latest
	deadlockCheck = 1e6    // ns between two searches for a deadlock

	// nicQueue is what the port of a NIC queues, as the time in ns that it takes to send it: the
	// next step fills it before it is empty.
	nicQueue = 4 * stepInterval
)

// Run runs a workload. A result comes with ErrDeadlock, too.
func Run(ctx context.Context, t *Topology, w *Workload, o Options) (*Result, error) {
	sim := &simulation{topology: t, workload: w, seed: o.Seed, now: 1, buffers: nic.NewFrameBuffers(), progress: o.Progress}
	if sim.progress == nil {
		sim.progress = NewProgress()
	}
	defer sim.close()
	if err := sim.build(o); err != nil {
		return nil, err
	}
	if err := sim.run(ctx); err != nil && !errors.Is(err, ErrDeadlock) {
		return nil, err
	} else if err := errors.Join(err, sim.finishCaptures()); err != nil && !errors.Is(err, ErrDeadlock) {
		return nil, err
	} else {
		return sim.result(), err
	}
}

func (sim *simulation) build(o Options) (err error) {
	net := sim.topology.Network
	net.NICQueue = nicQueue
	if sim.network, err = network.New(&net, sim.seed); err != nil {
		return err
	}
	sim.network.Advance(sim.now)
	sim.shared = newShared(sim.network)
	sim.hosts = make([]host, sim.network.NICs())
	sim.steps = eventqueue.New(sim.network.NICs())
	p := &planner{rnd: rand.New(rand.NewPCG(sim.seed, 4)), nics: map[string]int{},
		rate: func(i int) int64 { return sim.network.NICPort(i).Rate }}
	for i := range sim.network.NICs() {
		name := sim.network.NICName(i)
		p.nics[name], p.names = i, append(p.names, name)
	}
	for i := range sim.workload.Traffic {
		if err := p.plan(&sim.workload.Traffic[i]); err != nil {
			return yamlfile.Locate(sim.workload.path, atLine(sim.workload.Traffic[i].line, err))
		}
	}
	for _, f := range sim.workload.Flows {
		t := Traffic{Pattern: singleFlow, From: f.From, To: f.To, Size: f.Size, Start: f.Start, Priority: f.Priority}
		if err := p.plan(&t); err != nil {
			return yamlfile.Locate(sim.workload.flowsPath, atLine(f.line, err))
		}
	}
	sim.flows, sim.left = p.flows, len(p.flows)
	for _, f := range sim.flows {
		if f.Size == 0 {
			sim.endless++
		}
		if f.waits == 0 {
			sim.starts = append(sim.starts, f)
		}
	}
	slices.SortStableFunc(sim.starts, func(a, b *flow) int { return int(a.Start - b.Start) })
	sim.progress.flows.Store(int64(len(sim.flows)))
	sim.progress.end.Store(sim.workload.Time)
	if err := sim.planFailures(); err != nil {
		return err
	}
	for i := range sim.network.NICs() {
		if err := sim.newHost(i); err != nil {
			return err
		}
	}
	sim.sampler = newSampler(sim.network, sim.hosts, cmp.Or(sim.workload.SampleInterval, defaultInterval))
	return sim.startCaptures(o.Captures)
}

func (sim *simulation) close() {
	for i := range sim.hosts {
		if e := sim.hosts[i].engine; e != nil {
			e.Close()
		}
	}
	for _, r := range sim.recs {
		r.w.Close()
	}
}

func (sim *simulation) startCaptures(l []Capture) error {
	for _, c := range l {
		i, err := sim.port(c.Port)
		if err != nil {
			return err
		}
		w, err := capture.Create(c.File, c.Port)
		if err != nil {
			return err
		}
		r := &recorder{w: w, memory: sim.shared.memory}
		sim.recs = append(sim.recs, r)
		sim.network.Ports()[i].Tap(r.record)
	}
	return nil
}

// port returns the index of the port of a name.
func (sim *simulation) port(name string) (int, error) {
	ports := sim.network.Ports()
	if i := slices.IndexFunc(ports, func(p *network.Port) bool { return p.Name == name }); i >= 0 {
		return i, nil
	}
	var names []string
	for _, p := range ports[:min(40, len(ports))] {
		names = append(names, p.Name)
	}
	return 0, fmt.Errorf("no port %q%s", name, suggest.Word(name, names))
}

func (sim *simulation) finishCaptures() (err error) {
	for _, r := range sim.recs {
		err = errors.Join(err, r.err, r.w.Close())
	}
	sim.recs = nil
	return err
}

// run lets time pass until everything has ended, or the time of the workload.
func (sim *simulation) run(ctx context.Context) error {
	end := sim.workload.Time
	if end > 0 {
		end++ // time begins at 1
	}
	sim.measured = sim.workload.Warmup + 1
	warm := sim.workload.Warmup == 0
	nextCheck, nextLook := int64(deadlockCheck), 0
	for sim.left > 0 {
		at := sim.next()
		if at == 0 {
			return sim.stuck(errors.New("nothing happens any more, and flows have not ended"))
		}
		at = min(at, nextCheck) // in a deadlock, nothing may happen until a timer expires
		if !warm && at >= sim.measured {
			sim.sampler.until(sim.measured)
			sim.network.Advance(sim.measured)
			sim.network.Reset()
			sim.base = sim.count()
			warm = true
		}
		if end > 0 && at >= end {
			sim.now = end
			sim.sampler.until(end)
			sim.network.Advance(end)
			return sim.stuck(nil)
		}
		sim.now = at
		sim.sampler.until(at)
		if nextLook++; nextLook&0x3ff == 0 {
			if sim.progress.now.Store(sim.now); ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if sim.now >= nextCheck {
			if err := sim.stuck(nil); err != nil {
				return err
			}
			nextCheck = sim.now + deadlockCheck
		}
		if err := sim.step(); err != nil {
			return err
		}
	}
	return nil
}

// stuck returns ErrDeadlock with the ports that are in one, or else err.
func (sim *simulation) stuck(err error) error {
	d := sim.network.Deadlock()
	if d == nil {
		return err
	}
	sim.deadlock = d
	text := strings.Join(d.Cycle, " ")
	if d.Waiting != nil {
		text += "; ports that wait for these: " + strings.Join(d.Waiting, " ")
	}
	return fmt.Errorf("%w at %v: each of these ports waits for the next, the last for the first, and their pauses do not end: %s",
		ErrDeadlock, time.Duration(sim.now).Round(time.Microsecond), text)
}

// next returns when something happens next.
func (sim *simulation) next() (at int64) {
	consider := func(t int64) {
		if t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	consider(sim.network.Next())
	consider(sim.steps.Next())
	if len(sim.starts) > 0 {
		consider(max(sim.starts[0].Start+1, sim.now))
	}
	return at
}

// step carries out what happens now.
func (sim *simulation) step() error {
	sim.network.Advance(sim.now)
	sim.network.Ready(func(i int) { sim.hosts[i].wakeNow() })
	for len(sim.starts) > 0 && sim.starts[0].Start < sim.now {
		f := sim.starts[0]
		sim.starts = sim.starts[1:]
		if err := sim.start(f); err != nil {
			return err
		}
	}
	for {
		i, ok := sim.steps.Pop(sim.now)
		if !ok {
			return nil
		}
		if err := sim.hosts[i].step(); err != nil {
			return err
		}
	}
}

func (sim *simulation) start(f *flow) error {
	c, err := sim.hosts[f.from].connection(&sim.hosts[f.to], f.Priority)
	if err != nil {
		return fmt.Errorf("flow from %s to %s: %w", f.From, f.To, err)
	}
	f.started, f.began = true, sim.now
	c.flow, c.posted = f, 0
	c.post()
	return nil
}

// end notes that a flow has ended, and starts those that have waited for it.
func (sim *simulation) end(f *flow) {
	f.ended = sim.now
	sim.left--
	sim.progress.ended.Add(1)
	for _, o := range f.then {
		if o.waits--; o.waits == 0 {
			o.Start = sim.now - 1
			sim.starts = slices.Insert(sim.starts, 0, o)
		}
	}
}

// wakeNow makes the host step as soon as its interval allows, since it has something to do.
func (h *host) wakeNow() {
	h.leaveOut()
	h.wake(h.sim.now)
}

// wake makes the host step at a time, or as soon as its interval allows.
func (h *host) wake(at int64) {
	at = max(at, h.stepped+stepInterval)
	if before := h.sim.steps.At(h.link.nic); before == 0 || at < before {
		h.sim.steps.Set(h.link.nic, at)
	}
}

// step steps the NIC, and lets the program handle its completions.
func (h *host) step() error {
	now := h.sim.now
	h.leaveOut()
	h.stepped = now
	step := (*nic.Engine).StepSilent
	if h.rung {
		step, h.rung = (*nic.Engine).Step, false
	}
	next, busy := step(h.engine, now)
	switch {
	case busy && h.link.blocked:
		h.wake(now + blockedPoll) // the port wakes it when there is room
	case busy:
		h.due, h.quiet = h.engine.Idle()
		switch after := now + stepInterval; {
		case !h.quiet || h.due != 0 && h.due <= after:
			h.quiet = false
			h.wake(after)
		case h.due != 0:
			h.wake(max(h.due, after+stepInterval))
		}
	case next != 0:
		h.wake(next)
	}
	return h.poll()
}

// leaveOut ends the quiet of a host, which has something to do now. The engine only notes the time
// of a step that was left out. One whose time has not come is not left out.
func (h *host) leaveOut() {
	if !h.quiet {
		return
	}
	h.quiet = false
	at := h.stepped + stepInterval
	if at >= h.sim.now {
		h.wake(at)
		return
	}
	h.stepped = at
	h.engine.Skip(at, h.due)
}
