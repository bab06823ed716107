// Package perf measures bandwidth, message rate and latency of one RDMA operation between
// two NICs: two of one daemon, or one here and one that a Server elsewhere holds.
//
// A run goes like this. Over a stream connection the client tells what it wants to measure
// and where its queue pairs are, and the server answers with where its are. Then, first, one
// queue pair has one operation outstanding at a time: each is timed from posting to
// completion, that is until the peer has acknowledged or answered it. Then all queue
// pairs are kept full for a while and what completes is counted. At the end both sides
// compare what arrived with what was sent.
package perf

import (
	"fmt"
	"time"

	"softroce/verbs"
)

// An Op is the operation that is measured.
type Op string

// Operations.
const (
	Send   Op = "send"
	Write  Op = "write"
	Read   Op = "read"
	Atomic Op = "atomic" // FETCH_ADD of 8 bytes
)

// A Type is the transport service that carries it.
type Type string

// Types. UC has send and write, UD send alone. There a completion says that a message has left,
// not that it has arrived: no latency is measured, and the server counts what came.
const (
	RC Type = "rc"
	UC Type = "uc"
	UD Type = "ud"
)

// Options say what to measure. Zero values are not defaults: start from DefaultOptions.
type Options struct {
	Op       Op            `json:"op"`
	Type     Type          `json:"type"`
	Size     int           `json:"size"`     // bytes of a message; always 8 for Atomic
	Duration time.Duration `json:"duration"` // of the bandwidth phase
	Latency  time.Duration `json:"latency"`  // of the latency phase; 0 leaves it out
	QPs      int           `json:"qps"`
	Depth    int           `json:"depth"` // operations outstanding per QP
	MTU      int           `json:"mtu"`   // path MTU in bytes; 0: the smaller active one
}

// DefaultOptions returns the defaults for an operation.
func DefaultOptions(op Op) Options {
	return Options{Op: op, Type: RC, Size: 65536, Duration: 2 * time.Second, Latency: time.Second, QPs: 1, Depth: 64}
}

// Bounds of what can be asked for.
const (
	maxSize     = 1 << 30
	maxQPs      = 1024
	maxDepth    = 8192
	maxDuration = time.Hour
	atomicSize  = 8
)

// Validate says which option is out of its range.
func (o *Options) Validate() error {
	switch o.Op {
	case Send, Write, Read:
	case Atomic:
		o.Size = atomicSize
	default:
		return fmt.Errorf("operation %q: want send, write, read or atomic", o.Op)
	}
	if err := o.validateType(); err != nil {
		return err
	}
	for _, c := range []struct {
		name        string
		v, low, top int
	}{{"size", o.Size, 1, maxSize}, {"qps", o.QPs, 1, maxQPs}, {"depth", o.Depth, 1, maxDepth}} {
		if c.v < c.low || c.v > c.top {
			return fmt.Errorf("%s %d: want %d to %d", c.name, c.v, c.low, c.top)
		}
	}
	if o.Duration <= 0 || o.Duration > maxDuration {
		return fmt.Errorf("duration %v: want more than 0, at most %v", o.Duration, maxDuration)
	}
	if o.Latency < 0 || o.Latency > maxDuration {
		return fmt.Errorf("latency duration %v: want 0 to %v", o.Latency, maxDuration)
	}
	if _, ok := verbs.ParseMTU(o.MTU); !ok && o.MTU != 0 {
		return fmt.Errorf("mtu %d: want 256, 512, 1024, 2048 or 4096", o.MTU)
	}
	return nil
}

func (o *Options) validateType() error {
	switch {
	case o.Type == RC:
		return nil
	case o.Type != UC && o.Type != UD:
		return fmt.Errorf("type %q: want rc, uc or ud", o.Type)
	case o.Op == Read || o.Op == Atomic || o.Type == UD && o.Op != Send:
		return fmt.Errorf("%s is not supported by %s: uc supports send and write, ud supports send", o.Op, o.Type)
	case o.Type == UD && o.Size > maxDatagram:
		return fmt.Errorf("size %d: a datagram is at most a path MTU long", o.Size)
	}
	o.Latency = 0
	return nil
}

// maxDatagram is the largest path MTU there is.
const maxDatagram = 4096

// header is what stands before a message in the server's memory.
func (o *Options) header() int {
	if o.Type == UD {
		return verbs.GRHLen
	}
	return 0
}

// stride is how far apart the queue pairs' buffers lie: a cache line at least, so that no
// two share one.
func (o *Options) stride() int { return (o.header() + o.Size + 63) &^ 63 }

// signalBytes bounds how much one completion may stand for: short phases
// are to be counted finely enough.
const signalBytes = 4 << 20

// batch is how many operations are posted at a time, the last of them signaled.
func (o *Options) batch() int {
	return max(1, min(o.Depth/4, signalBytes/o.Size))
}

// recvDepth is how many receives the server of Send keeps posted: several times what the
// client has outstanding, so that a late server is not at once receiver not ready.
func (o *Options) recvDepth() int { return min(max(1024, 4*o.Depth), 2*maxDepth) }

// refill is how many receives are used up before the server posts them again. That often
// the client's messages are solicited, and wake it: once for many.
func (o *Options) refill() int { return o.recvDepth() / 8 }
