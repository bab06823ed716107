package eventqueue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// A model is a queue that looks at all events.
type model struct {
	at    []int64
	order []int
	sets  int
}

func (m *model) set(i int32, at int64) {
	m.sets++
	m.at[i], m.order[i] = at, m.sets
}

func (m *model) first() (i int32, ok bool) {
	var l []int32
	for i, at := range m.at {
		if at != 0 {
			l = append(l, int32(i))
		}
	}
	if l == nil {
		return 0, false
	}
	return slices.MinFunc(l, func(a, b int32) int { return cmp.Or(cmp.Compare(m.at[a], m.at[b]), m.order[a]-m.order[b]) }), true
}

// Events come in the order of their times, and of the calls of Set, also when they are moved, and
// with gaps up to many times the horizon.
func TestOrder(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		const n = 40
		q, m := New(n/2), &model{at: make([]int64, n), order: make([]int, n)}
		q.Grow(n - n/2)
		now, popped := int64(1), 0
		spans := []int64{1, 3, 100, horizon - 1, horizon, horizon + 1, 5 * horizon, 1000 * horizon}
		for range 20_000 {
			if rnd.IntN(3) > 0 {
				i, at := int32(rnd.IntN(n)), now+rnd.Int64N(spans[rnd.IntN(len(spans))])
				q.Set(i, at)
				m.set(i, at)
				if q.At(i) != at {
					t.Fatalf("event at %d, want %d", q.At(i), at)
				}
			}
			want, any := m.first()
			if next := q.Next(); any && next != m.at[want] || !any && next != 0 {
				t.Fatalf("seed %d: next at %d, want source %d at %d", seed, next, want, m.at[want])
			}
			until := now + rnd.Int64N(spans[rnd.IntN(len(spans))])
			got, ok := q.Pop(until)
			if ok != (any && m.at[want] <= until) || ok && got != want {
				t.Fatalf("seed %d: source %d (%v), want %d at %d, until %d", seed, got, ok, want, m.at[want], until)
			}
			if ok {
				now, popped = m.at[want], popped+1
				m.at[want] = 0
			}
		}
		if popped < 5000 {
			t.Errorf("seed %d: %d events", seed, popped)
		}
	}
}

// However often timers move and events precede them, each source has at most one place in the heap.
func TestMovedTimersTakeNoMemory(t *testing.T) {
	q := New(2)
	for now := int64(1); now < 1e6; now += 500 {
		q.Set(0, now+67e6)
		q.Set(0, now+50e3)
		q.Set(0, now+67e6)
		q.Set(1, now)
		if i, ok := q.Pop(now); !ok || i != 1 {
			t.Fatalf("source %d at %d", i, now)
		}
	}
	if len(q.far) != 1 || q.Next() != 1e6+1-500+67e6 {
		t.Errorf("%d places, next event at %d", len(q.far), q.Next())
	}
}

func BenchmarkQueue(b *testing.B) {
	const n = 1000
	q := New(n)
	for i := range int32(n) {
		q.Set(i, int64(i+1))
	}
	for b.Loop() {
		i, _ := q.Pop(1 << 62)
		q.Set(i, q.now+500+int64(i))
	}
}
