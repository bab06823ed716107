package verbs

// PollsBetween is pollsBetween.
var PollsBetween = pollsBetween

// CountYields counts how often the queue yields the processor.
func (q *CQ) CountYields() *int {
	n, yield := 0, q.yielder.yield
	q.yielder.yield = func() {
		n++
		yield()
	}
	return &n
}
