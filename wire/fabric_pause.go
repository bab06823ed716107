package wire

import (
	"sync/atomic"

	"softroce/internal/network"
	"softroce/packet"
)

// A pauseLog has the pause frames that have arrived at a link of a fabric's network while captures
// record it. The mutex of the network guards it.
type pauseLog struct {
	on      bool
	list    []recordedPause
	waiting atomic.Bool     // list is not empty
	taken   []recordedPause // storage of the next list
}

// A recordedPause is a pause frame and the time in ns at which it arrived.
type recordedPause struct {
	at    int64
	frame packet.Pause
}

// maxPauses is how many pause frames wait for a capture. More are lost to it: its engine has been
// late for some milliseconds.
const maxPauses = 4096

// recordPauses implements pauseRecorder.
func (p *FabricLink) recordPauses(on bool) {
	n := p.fabric.network
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.pauses.on = on
	n.tap(p)
}

// tap makes the network report the frames at p's port if they are recorded.
func (n *fabricNetwork) tap(p *FabricLink) {
	switch {
	case p.nic < 0 || n.links[p.nic] != p:
	case p.pauses.on:
		n.net.NICPort(p.nic).Tap(p.pauses.add)
	default:
		n.net.NICPort(p.nic).Tap(nil)
		p.pauses.clear()
	}
}

func (l *pauseLog) add(now int64, _ bool, f *network.Frame) {
	if f.Pause && len(l.list) < maxPauses {
		l.list = append(l.list, recordedPause{now, f.PauseFrame()})
		l.waiting.Store(true)
	}
}

func (l *pauseLog) clear() {
	l.list = l.list[:0]
	l.waiting.Store(false)
}

// hasPauses implements pauseRecorder.
func (p *FabricLink) hasPauses() bool { return p.pauses.waiting.Load() }

// takePauses implements pauseRecorder.
func (p *FabricLink) takePauses() []recordedPause {
	p.fabric.network.mu.Lock()
	defer p.fabric.network.mu.Unlock()
	l := &p.pauses
	l.list, l.taken = l.taken[:0], l.list
	l.waiting.Store(false)
	return l.taken
}
