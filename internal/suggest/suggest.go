// Package suggest completes error messages about unknown words.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// Word returns the end of an error message: the known word most like word, or all known words.
func Word(word string, known []string) string {
	slices.Sort(known)
	known = slices.Compact(known)
	best, least := "", 3
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return fmt.Sprintf(" (have: %s)", strings.Join(known, ", "))
}

// distance returns the Levenshtein distance of a and b. For an a much longer than b it returns a
// length that is too large to matter.
func distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
