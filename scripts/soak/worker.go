package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"softroce/verbs"
)

// stallLimit is how long a completion or an event may take. The longest of what faults explain is a
// connection request whose messages are lost several times.
const stallLimit = 2 * time.Minute

// timeLimit returns a context that ends when something has taken too long.
func timeLimit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), stallLimit)
}

// A process is a worker in its own process.
type process struct {
	socket string
	qps    int
	mapped bool // all memory of endpoints
	random *rand.Rand
	stop   chan struct{} // closed when the parent wants it to leave

	mu     sync.Mutex
	tally  tally
	failed bool
}

// runWorker runs until the parent closes standard input, and returns the exit status.
func runWorker(kind, socket string, o *options) int {
	p := &process{socket: socket, qps: o.qps, mapped: o.mapped, random: rand.New(rand.NewPCG(o.seed, 2)), stop: make(chan struct{}), tally: tally{}}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(p.stop)
	}()
	reporting := make(chan struct{})
	go func() {
		defer close(reporting)
		for !p.stopped() {
			select {
			case <-p.stop:
			case <-time.After(time.Second):
				p.flush()
			}
		}
	}()
	var err error
	switch kind {
	case kindPairs:
		err = p.pairs()
	case kindServer:
		err = p.serve()
	case kindClient:
		err = p.clients()
	case kindLoad:
		runtime.GOMAXPROCS(1)
		for !p.stopped() {
		}
	default:
		err = fmt.Errorf("unknown kind of worker %q", kind)
	}
	if err != nil {
		p.fail(err)
	}
	if p.stopped() {
		<-reporting
	}
	p.flush()
	if p.failed {
		return 1
	}
	return 0
}

func (p *process) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// did counts something.
func (p *process) did(what string, n int) {
	p.mu.Lock()
	p.tally[what] += uint64(n)
	p.mu.Unlock()
}

// flush reports what was counted since the last report.
func (p *process) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tally) > 0 {
		p.report(&report{Tally: p.tally})
		p.tally = tally{}
	}
}

func (p *process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
	p.report(&report{Fail: err.Error()})
}

// lost reports an error that is explained if the peer was killed.
func (p *process) lost(peer int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report(&report{Lost: err.Error(), Peer: peer})
}

func (p *process) report(r *report) {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(b, '\n'))
}

// An endpoint is what one side of a pair has: memory with its region, and a completion queue.
type endpoint struct {
	nic    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	mr     *verbs.MR
	mem    []byte
	buffer *verbs.Buffer // nil: mem is ordinary memory
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
	verbs.AccessMWBind | verbs.AccessFlushGlobal

// newEndpoint creates an endpoint with n bytes of memory, which the NIC maps or not.
func newEndpoint(ctx context.Context, nic *verbs.Context, n int, mapped bool) (e *endpoint, err error) {
	e = &endpoint{nic: nic}
	if e.pd, err = nic.AllocPD(ctx); err != nil {
		return nil, err
	}
	if e.cq, err = nic.CreateCQ(ctx, 256, nil); err != nil {
		return nil, err
	}
	if mapped {
		if e.buffer, err = nic.AllocBuffer(n); err != nil {
			return nil, err
		}
		e.mem = e.buffer.Bytes()
	} else {
		e.mem = make([]byte, n)
	}
	e.mr, err = e.pd.RegMR(ctx, e.mem, allAccess)
	return e, err
}

type closer interface{ Close(context.Context) error }

// close closes the endpoint after the objects that use it.
func (e *endpoint) close(ctx context.Context, users ...closer) (err error) {
	for _, o := range append(users, e.mr, e.cq, e.pd) {
		err = errors.Join(err, o.Close(ctx))
	}
	if e.buffer != nil {
		err = errors.Join(err, e.buffer.Close())
	}
	return err
}

// collect waits for n completions. Each must be successful.
func (e *endpoint) collect(ctx context.Context, n int) ([]verbs.WC, error) {
	wc := make([]verbs.WC, n)
	for got := 0; got < n; {
		if err := e.cq.Wait(ctx); err != nil {
			return nil, fmt.Errorf("%d of %d completions: %w", got, n, err)
		}
		k, err := e.cq.Poll(wc[got:])
		if err != nil {
			return nil, err
		}
		for _, c := range wc[got : got+k] {
			if err := c.Err(); err != nil {
				return nil, err
			}
		}
		got += k
	}
	return wc, nil
}

// fill writes random bytes. The generator is that of the caller.
func fill(r *rand.Rand, b []byte) {
	var key [32]byte
	for i := range key {
		key[i] = byte(r.Uint32())
	}
	rand.NewChaCha8(key).Read(b)
}
