package cm

import "container/heap"

// timers is a heap of connections by their deadlines.
type timers []*Conn

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].deadline < t[j].deadline }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i]; t[i].timer, t[j].timer = i, j }

// Push is for package heap.
func (t *timers) Push(x any) {
	c := x.(*Conn)
	c.timer = len(*t)
	*t = append(*t, c)
}

// Pop is for package heap.
func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.timer = -1
	return c
}

func (t *timers) next() int64 {
	if len(*t) == 0 {
		return 0
	}
	return (*t)[0].deadline
}

// pop removes a connection whose deadline has passed, nil if there is none.
func (t *timers) pop(now int64) *Conn {
	if len(*t) == 0 || (*t)[0].deadline > now {
		return nil
	}
	return heap.Pop(t).(*Conn)
}

// set sets the deadline of c, or removes it if at is 0.
func (t *timers) set(c *Conn, at int64) {
	c.deadline = at
	switch {
	case at == 0 && c.timer >= 0:
		heap.Remove(t, c.timer)
	case at != 0 && c.timer >= 0:
		heap.Fix(t, c.timer)
	case at != 0:
		heap.Push(t, c)
	}
}
