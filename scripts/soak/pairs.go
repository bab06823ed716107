package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"softroce/verbs"
)

// A workload creates a pair of queue pairs between two NICs, uses them and destroys them.
type workload func(p *process, r *rand.Rand, a, b *verbs.Context) error

// pairKinds are the workloads of the pairs of a process, in turn.
var pairKinds = []workload{reliable(""), reliable("SRQ "), reliable("XRC "), unreliable, datagrams, reliable("")}

// rounds is the number of rounds after which a pair is destroyed.
const rounds = 60

// pairs runs pairs of all kinds until the process ends.
func (p *process) pairs() error {
	ctx, cancel := timeLimit()
	defer cancel()
	a, err := verbs.Open(ctx, nicA, verbs.WithSocket(p.socket))
	if err != nil {
		return err
	}
	b, err := verbs.Open(ctx, nicB, verbs.WithSocket(p.socket))
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for i := range p.qps / 2 {
		r := rand.New(rand.NewPCG(p.random.Uint64(), 3))
		running.Go(func() {
			for !p.stopped() {
				if err := pairKinds[i%len(pairKinds)](p, r, a, b); err != nil {
					p.fail(err)
					return
				}
			}
		})
	}
	running.Wait()
	return errors.Join(a.Close(), b.Close())
}

// ackTimeout is the local ACK timeout that the connection manager sets too, 0.54 s. Other load on
// the machine may keep the daemon or a client from running for longer than the retries of the
// default take.
const ackTimeout = 17

// connectPair connects two queue pairs.
func connectPair(ctx context.Context, r *rand.Rand, x, y *verbs.QP) error {
	o := verbs.DefaultConnectOptions()
	o.PathMTU = verbs.MTU(1 + r.IntN(5))
	o.Timeout = ackTimeout
	o.Access = allAccess
	for _, c := range [][2]*verbs.QP{{x, y}, {y, x}} {
		to, err := c[1].Info(ctx, verbs.AnyGID)
		if err != nil {
			return err
		}
		if err := c[0].Connect(ctx, to, o); err != nil {
			return err
		}
	}
	return nil
}

// length returns the length of a message: often a few bytes or a packet, up to n.
func length(r *rand.Rand, n int) int {
	switch r.IntN(3) {
	case 0:
		return 1 + r.IntN(64)
	case 1:
		return 1 + r.IntN(min(n, 4096))
	}
	return 1 + r.IntN(n)
}

// different describes the first difference between what arrived and what should have.
func different(what string, got, want []byte) error {
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d of %d is %#02x, want %#02x", what, i, len(got), got[i], want[i])
		}
	}
	return nil
}
