package mrtable

import "slices"

// A Client owns memory that only the kernel can copy: that of its process, and guarded mappings.
// The operations on such memory are queued, and each Flush carries those of a client out in one
// Batch, in the order in which they were queued. A protection domain says whose its regions are.
type Client struct {
	Owner any // opaque

	batch   *Batch // what is queued; nil if nothing is
	spare   *Batch // storage for the next one
	running *Batch // handed to IO.Runner and not settled yet

	alive      *Process // process that was last seen alive,
	aliveEpoch uint64   // in which epoch,
	aliveAt    int64    // and at which time
}

// aliveFor is how long, in nanoseconds, a process counts as alive after it was seen alive. A PID is
// reused only after all others were: that takes the fork of hundreds of processes at least.
const aliveFor = 1e6

// clientOf returns the client that r belongs to.
func (io *IO) clientOf(r *Region) *Client {
	switch {
	case len(r.PD.Clients) > 0:
		return r.PD.Clients[io.index]
	case r.PD.Client != nil:
		return r.PD.Client
	}
	return &io.anonymous
}

// queue returns the batch of a client that operations are added to. It is nil while one is in
// progress: until that has returned, the data to write and the arena are used for something else.
func (io *IO) queue(c *Client) *Batch {
	if c.running != nil {
		return nil
	}
	if c.batch == nil {
		if c.batch, c.spare = c.spare, nil; c.batch == nil {
			c.batch = &Batch{client: c}
		}
		io.dirty = append(io.dirty, c)
	}
	return c.batch
}

// hasQueued reports whether an operation with this tag is queued or in progress.
func (c *Client) hasQueued(tag any) bool { return c.batch.has(tag) || c.running.has(tag) }

func (b *Batch) has(tag any) bool {
	return b != nil && slices.ContainsFunc(b.ops, func(o op) bool { return o.tag == tag })
}

// Flush carries out all queued operations. The slices given to Write are no longer used afterwards,
// and the reads are done, except those of clients for which Runner has returned false.
func (io *IO) Flush() {
	for len(io.dirty) > 0 {
		end := len(io.dirty) - 1
		c := io.dirty[end]
		io.dirty[end] = nil
		io.dirty = io.dirty[:end]

		b := c.batch
		c.batch, c.running = nil, b
		io.filterLive(b)
		if len(b.ops) > 0 {
			if io.Runner == nil {
				b.Run()
			} else if !io.Runner(b) {
				continue
			}
		}
		io.Settle(b)
	}
}

// filterLive drops the operations whose region is no longer registered or whose process has ended.
// Writes through a window that was invalidated since are executed, because they precede the
// invalidation.
func (io *IO) filterLive(b *Batch) {
	kept := 0
	for i := range b.ops {
		o := &b.ops[i]
		err := io.checkAlive(b.client, o.region)
		switch {
		case o.region.registered().gone.Load():
			err = ErrKey
		case err == nil && o.tag != nil && len(io.failed) > 0 && io.hasFailed(o.tag):
			continue
		}
		switch {
		case err == nil:
			if kept != i {
				b.ops[kept] = *o
			}
			kept++
		case o.read != nil:
			o.read.err = err
		default:
			io.fail(o.tag, err)
		}
	}
	clear(b.ops[kept:])
	b.ops = b.ops[:kept]
}

// checkAlive checks, at most once an epoch and in aliveFor, that the PID still refers to the
// process.
func (io *IO) checkAlive(c *Client, r *Region) error {
	if r.process == nil {
		return nil
	}
	p := r.process.process
	if c.alive == p && (c.aliveEpoch == io.epoch || io.Now-c.aliveAt < aliveFor && io.Now > 0) {
		return nil
	}
	if !p.alive() {
		return ErrGone
	}
	c.alive, c.aliveEpoch, c.aliveAt = p, io.epoch, io.Now
	return nil
}

// Settle takes over the results of a batch whose Run has returned.
func (io *IO) Settle(b *Batch) {
	c := b.client
	for _, r := range b.reads {
		r.done = true
	}
	for i := range b.readsFailed {
		b.readsFailed[i].read.err = b.readsFailed[i].err
	}
	for i := range b.failed {
		io.fail(b.failed[i].tag, b.failed[i].err)
	}
	if l := b.revoked.Swap(nil); l != nil {
		for _, tag := range *l {
			io.fail(tag, ErrGone)
		}
	}
	io.results = append(io.results, b.results...)
	if b.detached {
		io.settleDetached(b)
	}
	io.unpin(b)
	b.reset()
	c.running = nil
	if c.batch == nil && c.spare == nil {
		c.spare = b
	}
}
