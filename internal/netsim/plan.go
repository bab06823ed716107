package netsim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"softroce/internal/suggest"
)

// A planner draws the flows of a workload.
type planner struct {
	rnd   *rand.Rand
	nics  map[string]int
	names []string
	rate  func(nic int) int64
	flows []*flow
}

// plan adds the flows of a pattern.
func (p *planner) plan(t *Traffic) error {
	all := make([]int, 0, len(p.names))
	if t.NICs == nil {
		for i := range p.names {
			all = append(all, i)
		}
	}
	for _, name := range t.NICs {
		i, err := p.nic(name)
		if err != nil {
			return err
		}
		if slices.Contains(all, i) {
			return fmt.Errorf("nics: %s is there twice", name)
		}
		all = append(all, i)
	}
	if len(all) < 2 {
		return errors.New("want at least two NICs")
	}
	if n := len(all); (t.Pattern == allToAll || t.Pattern == ringAllReduce) && 2*n*(n-1) > maxCount {
		return fmt.Errorf("%s of %d NICs: more than %d flows", t.Pattern, n, maxCount)
	}
	switch t.Pattern {
	case incast:
		return p.incast(t, all)
	case permuted:
		p.permutation(t, all)
	case allToAll:
		for i := range all { // each begins with the next one, so that the receivers differ
			for j := 1; j < len(all); j++ {
				p.add(t, t.Start, all[i], all[(i+j)%len(all)], t.Size)
			}
		}
	case ringAllReduce:
		p.ringAllReduce(t, all)
	case treeAllReduce:
		p.treeAllReduce(t, all)
	case singleFlow:
		from, err := p.nic(t.From)
		if err != nil {
			return err
		}
		to, err := p.nic(t.To)
		if err != nil {
			return err
		}
		if from == to {
			return fmt.Errorf("flow from %s to itself", t.From)
		}
		p.add(t, t.Start, from, to, t.Size)
	case poisson:
		if err := p.poisson(t, all); err != nil {
			return err
		}
	}
	if len(p.flows) > maxCount {
		return fmt.Errorf("more than %d flows", maxCount)
	}
	return nil
}

func (p *planner) nic(name string) (int, error) {
	i, ok := p.nics[name]
	if !ok {
		known := p.names
		if len(known) > 20 {
			known = known[:20]
		}
		return 0, fmt.Errorf("no NIC %q%s", name, suggest.Word(name, append([]string(nil), known...)))
	}
	return i, nil
}

func (p *planner) add(t *Traffic, start int64, from, to int, size int64) *flow {
	f := &flow{Flow: Flow{Start: start, From: p.names[from], To: p.names[to], Size: size, Priority: t.Priority}, from: from, to: to, pattern: t.Pattern}
	p.flows = append(p.flows, f)
	return f
}

func (p *planner) incast(t *Traffic, all []int) error {
	to := all[len(all)-1]
	if t.To != "" {
		var err error
		if to, err = p.nic(t.To); err != nil {
			return err
		}
	}
	n := t.Senders // those that are missing; 0: all NICs send
	for _, from := range all {
		if from == to || t.Senders > 0 && n == 0 {
			continue
		}
		p.add(t, t.Start, from, to, t.Size)
		n--
	}
	if n > 0 {
		return fmt.Errorf("incast: %d senders: there are %d NICs", t.Senders, len(all))
	}
	return nil
}

// permutation makes each NIC send to one, and receive from one: a random cycle.
func (p *planner) permutation(t *Traffic, all []int) {
	order := p.rnd.Perm(len(all))
	for i := range order {
		p.add(t, t.Start, all[order[i]], all[order[(i+1)%len(order)]], t.Size)
	}
}

// ringAllReduce makes each NIC send, in 2(N-1) steps, an Nth of the data to the next one. It sends
// in a step what it has received in the step before.
func (p *planner) ringAllReduce(t *Traffic, all []int) {
	n := len(all)
	size := (t.Size + int64(n) - 1) / int64(n)
	var before []*flow
	for step := range 2 * (n - 1) {
		row := make([]*flow, n)
		for i := range all {
			row[i] = p.add(t, t.Start, all[i], all[(i+1)%n], size)
			if step > 0 {
				row[i].after(before[(i+n-1)%n], before[i])
			}
		}
		before = row
	}
}

// treeAllReduce reduces the data up a binary tree, whose root is the first NIC, and broadcasts it
// down. A NIC sends all of it to its parent when it has received that of its children, and to its
// children when it has received that of its parent. The children of NIC i are 2i+1 and 2i+2.
func (p *planner) treeAllReduce(t *Traffic, all []int) {
	n := len(all)
	up := make([]*flow, n)
	for i := n - 1; i > 0; i-- {
		up[i] = p.add(t, t.Start, all[i], all[(i-1)/2], t.Size)
		up[i].after(children(up, i)...)
	}
	down := make([]*flow, n)
	for i := 1; i < n; i++ {
		down[i] = p.add(t, t.Start, all[(i-1)/2], all[i], t.Size)
		if i > 2 {
			down[i].after(down[(i-1)/2])
		} else {
			down[i].after(children(up, 0)...)
		}
	}
}

// children returns the flows of the children of NIC i of a binary tree.
func children(flows []*flow, i int) []*flow {
	return flows[min(2*i+1, len(flows)):min(2*i+3, len(flows))]
}

// after makes a flow start when others have ended.
func (f *flow) after(l ...*flow) {
	f.waits += len(l)
	for _, o := range l {
		o.then = append(o.then, f)
	}
}

// poisson begins flows between random NICs at random times, so that the NICs are loaded by a share
// of their rate on average.
func (p *planner) poisson(t *Traffic, all []int) error {
	mean, last := 0.0, Point{}
	for _, q := range t.Sizes {
		mean += (q.Share - last.Share) * float64(q.Size+last.Size) / 2
		last = q
	}
	if len(t.Sizes) == 1 {
		mean = float64(t.Sizes[0].Size)
	}
	rate := 0.0 // bytes a second
	for _, i := range all {
		rate += float64(p.rate(i)) / 8
	}
	gap := 1e9 * mean / (t.Load * rate)
	at := float64(t.Start)
	for range t.Count {
		if at += p.rnd.ExpFloat64() * gap; at > float64(maxTime) {
			return fmt.Errorf("poisson: the flows take more than %v to start", maxTime)
		}
		from := p.rnd.IntN(len(all))
		to := p.rnd.IntN(len(all) - 1)
		if to >= from {
			to++
		}
		p.add(t, int64(at), all[from], all[to], draw(p.rnd, t.Sizes))
	}
	return nil
}

// draw draws a size. Between two points sizes are equally likely.
func draw(r *rand.Rand, sizes []Point) int64 {
	if len(sizes) == 1 {
		return sizes[0].Size
	}
	x, last := r.Float64(), Point{}
	for _, q := range sizes {
		if x <= q.Share {
			return max(1, last.Size+int64((x-last.Share)/(q.Share-last.Share)*float64(q.Size-last.Size)))
		}
		last = q
	}
	return last.Size
}
