// Package perf measures bandwidth, message rate and latency of one RDMA operation between two NICs:
// two of one daemon, or a local one and one of a Server elsewhere.
//
// A run starts with an exchange over a stream connection: the client sends its options and the
// addresses of its queue pairs, and the server replies with its own. Then the latency phase keeps
// one operation outstanding on one queue pair and times each from posting to completion, that is,
// until the peer has acknowledged or answered it. Then the bandwidth phase keeps all queue pairs
// full and counts completions. Finally both sides compare the data received with the data sent.
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

// A Type is the transport service to measure.
type Type string

// Types. UC supports send and write, UD only send. On both, a completion means that the message was
// sent, not that it was received, so latency is not measured, and the server counts the messages
// received.
const (
	RC Type = "rc"
	UC Type = "uc"
	UD Type = "ud"
)

// Options are the parameters of a measurement. Zero values are not defaults: start from
// DefaultOptions.
type Options struct {
	Op       Op            `json:"op"`
	Type     Type          `json:"type"`
	Size     int           `json:"size"`     // message size in bytes; always 8 for Atomic
	Duration time.Duration `json:"duration"` // of the bandwidth phase
	Latency  time.Duration `json:"latency"`  // of the latency phase; 0 skips it
	QPs      int           `json:"qps"`
	Depth    int           `json:"depth"` // operations outstanding per QP
	MTU      int           `json:"mtu"`   // path MTU in bytes; 0: the smaller active MTU of the two ports

	Progress *Progress `json:"-"` // updated while the measurement runs; may be nil
}

// DefaultOptions returns the defaults for an operation.
func DefaultOptions(op Op) Options {
	return Options{Op: op, Type: RC, Size: 65536, Duration: 2 * time.Second, Latency: time.Second, QPs: 1, Depth: 64}
}

// Bounds of the options.
const (
	maxSize     = 1 << 30
	maxQPs      = 16384
	maxDepth    = 8192
	maxDuration = time.Hour
	atomicSize  = 8
)

// Validate returns an error that names the first option out of range.
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
		return fmt.Errorf("size %d: a datagram has at most the bytes of a path MTU: want 1 to %d", o.Size, maxDatagram)
	}
	o.Latency = 0
	return nil
}

// maxDatagram is the largest path MTU.
const maxDatagram = 4096

// header returns the number of bytes before a message in the server's receive buffer.
func (o *Options) header() int {
	if o.Type == UD {
		return verbs.GRHLen
	}
	return 0
}

// stride returns the distance between the buffers of two queue pairs: a multiple of the cache line
// size, so that no two share a line.
func (o *Options) stride() int { return (o.header() + o.Size + 63) &^ 63 }

// signalBytes bounds the bytes per signaled completion, so that short phases are counted with
// sufficient resolution.
const signalBytes = 4 << 20

// batch returns how many operations are posted at a time. Only the last is signaled.
func (o *Options) batch() int {
	return max(1, min(o.Depth/4, signalBytes/o.Size))
}

// recvDepth returns how many receives the server of Send keeps posted: several times the number of
// outstanding messages, so that a delayed server does not cause RNR NAKs at once.
func (o *Options) recvDepth() int { return min(max(1024, 4*o.Depth), 2*maxDepth) }

// refill returns how many receives the server consumes before it posts new ones. The client sends a
// solicited message equally often, which wakes the server once for many messages.
func (o *Options) refill() int { return o.recvDepth() / 8 }
