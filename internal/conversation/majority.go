package conversation

// A Majority finds the value that more than half of all added ones have, in constant memory (Boyer
// and Moore). The zero value has none.
type Majority struct {
	value uint16
	ahead int
}

// Add adds a value.
func (m *Majority) Add(v uint16) {
	switch {
	case m.ahead == 0:
		m.value, m.ahead = v, 1
	case m.value == v:
		m.ahead++
	default:
		m.ahead--
	}
}

// Value returns the value of the majority, any value if there is no majority.
func (m *Majority) Value() uint16 { return m.value }

// Votes returns by how much the value is ahead of all others at least.
func (m *Majority) Votes() int { return m.ahead }
