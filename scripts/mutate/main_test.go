package main

import (
	"bytes"
	"os"
	"testing"
)

// TestMutationsApply verifies that the text of each mutation is in the source, and each rule in the
// document.
func TestMutationsApply(t *testing.T) {
	t.Chdir("../..")
	docs, err := os.ReadFile("docs/internals/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	all := mutations
	for _, m := range invariantMutations {
		all = append(all, m.mutation)
	}
	for _, m := range all {
		if _, err := m.broken(); err != nil {
			t.Errorf("%s: %v", m.rule, err)
		}
		if !bytes.Contains(docs, []byte("| "+m.rule+" |")) {
			t.Errorf("docs/internals/testing.md does not list: %s", m.rule)
		}
	}
}
