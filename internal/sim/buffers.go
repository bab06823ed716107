package sim

import "bytes"

// A program may use a buffer again when its work request is complete, when its queue pair is reset
// or destroyed, and when its memory is deregistered. The programs overwrite such buffers with
// poison at once, which must then not be sent to any peer.

const poison = 0xee

var poisoned = bytes.Repeat([]byte{poison}, 16)

// ownBuffer moves the payload of a work request to a buffer that nothing else uses.
func (e *endpoint) ownBuffer(k *work) {
	to, ok := e.alloc(k.src.n)
	if !ok {
		return
	}
	copy(e.mem[to.off:], e.source(k))
	copy(e.expected[to.off:], e.source(k))
	k.src, k.own = to, true
}

// reuse overwrites the buffer of a work request, if it has one of its own.
func (e *endpoint) reuse(k *work) {
	if k.own {
		k.own = false
		e.poison(k.src)
	}
}

// reuseAll overwrites the buffers of all work requests.
func (e *endpoint) reuseAll() {
	for i := range e.sends {
		e.reuse(&e.sends[i])
	}
}

// reuseMemory overwrites everything that a program sends.
func (p *program) reuseMemory(sim *simulation) {
	p.poison(span{0, sim.profile.Source})
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			if e.program == p {
				e.reuseAll()
			}
		}
	}
}

func (p *program) poison(s span) {
	for i := range p.mem[s.off:][:s.n] {
		p.mem[s.off+i] = poison
	}
	p.overwritten = append(p.overwritten, s)
}

// hasPoison reports whether memory contains what was written to a buffer after it was released.
func (p *program) hasPoison(s span) bool { return bytes.Contains(p.mem[s.off:][:s.n], poisoned) }
