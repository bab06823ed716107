package verbs

import "testing"

// PollsBetween is pollsBetween.
var PollsBetween = pollsBetween

// CountYields counts how often CQs yield the processor.
func CountYields(t *testing.T) *int {
	n, yield := 0, yieldProcessor
	yieldProcessor = func() {
		n++
		yield()
	}
	t.Cleanup(func() { yieldProcessor = yield })
	return &n
}
