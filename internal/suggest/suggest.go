// Package suggest completes error messages about unknown words.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// Word returns the end of an error message: the known word most like word, or all known words. Case
// does not matter, and words that C programs put in front, such as ibv_, or behind are left out.
func Word(word string, known []string) string {
	slices.Sort(known)
	known = slices.Compact(known)
	best, least := "", min(maxDistance+1, len(word))
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least && k != word {
			best, least = k, d
		}
	}
	if best == "" {
		best = part(word, known)
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return fmt.Sprintf(" (have: %s)", strings.Join(known, ", "))
}

// maxDistance is how many mistakes a word may have that is suggested.
const maxDistance = 2

// part returns the longest known word with which word begins or ends, up to an underscore.
func part(word string, known []string) (longest string) {
	w := "_" + strings.ToLower(word) + "_"
	for _, k := range known {
		in := "_" + strings.ToLower(k) + "_"
		if len(k) > len(longest) && (strings.HasPrefix(w, in) || strings.HasSuffix(w, in)) {
			longest = k
		}
	}
	return longest
}

// distance returns how many letters of a have to be inserted, removed, replaced or exchanged with
// the next one to get b. For an a much longer than b it returns a length that is too large to
// matter.
func distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	// The last three rows of the table whose entry i, j is the distance of a[:i] and b[:j].
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(above[j]+cost, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
