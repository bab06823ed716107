// Mutate breaks rules of packages transport and nic one at a time, and reports which test detects
// it.
//
//	go run ./scripts/mutate [-v] [WORD]
//
// With a WORD, it breaks only the rules whose text contains it.
//
// It does not change the source: the tests are built with an overlay of the changed file. It prints
// the table of docs/internals/testing.md, and fails if no test detects a broken rule.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// packages are tested in this order until a test fails.
var packages = []string{"./transport", "./transport/congestion", "./nic", "./internal/scenario", "./internal/sim"}

// testLimit bounds the tests of a package: a broken rule may make them wait forever.
const testLimit = 3 * time.Minute

func main() {
	verbose := flag.Bool("v", false, "print the output of the failed test")
	flag.Parse()
	if err := run(*verbose, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(verbose bool, word string) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Println("| rule that is broken | in | detected by |\n|---|---|---|")
	all := invariantMutations
	for _, m := range mutations {
		all = append(all, invariantMutation{mutation: m})
	}
	tried, undetected := 0, 0
	for _, m := range all {
		if !strings.Contains(m.rule, word) {
			continue
		}
		tried++
		by, output, err := m.try(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.rule, err)
		}
		if by == "" {
			by = "**nothing**"
			undetected++
		}
		fmt.Printf("| %s | `%s` | %s |\n", m.rule, m.file, by)
		if verbose {
			fmt.Println(output)
		}
	}
	if tried == 0 {
		return fmt.Errorf("no rule contains %q: nothing was broken", word)
	}
	if undetected > 0 {
		return fmt.Errorf("%d broken rules went undetected", undetected)
	}
	return nil
}

// path returns the name of the file, from the top of the source.
func (m *mutation) path() string {
	if strings.Contains(m.file, "/") {
		return m.file
	}
	return filepath.Join("transport", m.file)
}

// broken returns the file with the mutation applied.
func (m *mutation) broken() ([]byte, error) {
	text, err := os.ReadFile(m.path())
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("the text to replace occurs %d times in %s, want once", n, m.file)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

// try runs the tests with the mutated file, and returns the first test that fails and its output.
// Of a rule that an invariant rests on, only the simulation is asked.
func (m *invariantMutation) try(dir string) (by, output string, err error) {
	text, err := m.broken()
	if err != nil {
		return "", "", err
	}
	file, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	real, err := filepath.Abs(m.path())
	if err != nil {
		return "", "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {real: file}})
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", "", err
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return "", "", err
	}
	if m.invariant != 0 {
		found := fmt.Sprintf("invariant %d", m.invariant)
		if by, output, err = runTests("./internal/sim", overlay); strings.Contains(output, found+":") {
			return by + ": " + found, output, err
		}
		return "", output, err
	}
	for _, pkg := range packages {
		if by, output, err = runTests(pkg, overlay); by != "" || err != nil {
			return by, output, err
		}
	}
	return "", "", nil
}

// runTests runs the tests of a package and returns the name of the first that fails, with the
// package, and the output.
func runTests(pkg, overlay string) (by, output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	// vet would reject variables that the mutation leaves unused.
	cmd := exec.CommandContext(ctx, "go", "test", "-failfast", "-count=1", "-vet=off", "-timeout", "60s", "-overlay", overlay, pkg)
	out, failure := cmd.CombinedOutput()
	if failure == nil {
		return "", "", nil
	}
	name := strings.TrimPrefix(pkg, "./")
	for line := range strings.Lines(string(out)) {
		if test, ok := strings.CutPrefix(line, "--- FAIL: "); ok {
			return fmt.Sprintf("`%s.%s`", name, strings.Fields(test)[0]), string(out), nil
		}
		if strings.Contains(line, "[build failed]") {
			return "", "", fmt.Errorf("mutation does not build:\n%s", out)
		}
	}
	for _, end := range []string{"panic: test timed out", "panic: "} {
		if strings.Contains(string(out), end) {
			return fmt.Sprintf("`%s`: %s", name, strings.TrimSuffix(end, ": ")), string(out), nil
		}
	}
	return "", "", fmt.Errorf("%w:\n%s", failure, out)
}
