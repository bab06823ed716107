// Mutate breaks the rules of package transport one at a time, and finds out which test notices.
//
//	go run ./scripts/mutate [-v] [WORD]
//
// With a WORD, only the rules that have it in their text are broken.
//
// Nothing in the tree is changed: the broken file lies over the real one while the tests run. What is printed is
// the table in docs/internals/testing.md. The end is an error if a broken rule went unnoticed.
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

// packages are those whose tests are asked, in this order, until one notices.
var packages = []string{"./transport", "./nic", "./internal/scenario", "./internal/sim"}

// patience is how long the tests of a package may take: a broken rule may make them wait for ever.
const patience = 3 * time.Minute

func main() {
	verbose := flag.Bool("v", false, "print what the test that noticed said")
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
	fmt.Println("| rule that is broken | in | noticed by |\n|---|---|---|")
	unnoticed := 0
	for _, m := range mutations {
		if !strings.Contains(m.rule, word) {
			continue
		}
		by, said, err := m.try(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.rule, err)
		}
		if by == "" {
			by = "**nothing**"
			unnoticed++
		}
		fmt.Printf("| %s | `%s` | %s |\n", m.rule, m.file, by)
		if verbose {
			fmt.Println(said)
		}
	}
	if unnoticed > 0 {
		return fmt.Errorf("%d broken rules went unnoticed", unnoticed)
	}
	return nil
}

// broken returns the file with the rule broken.
func (m *mutation) broken() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join("transport", m.file))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("what is to be changed occurs %d times in %s", n, m.file)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

// try runs the tests over the broken file, and returns the first that fails.
func (m *mutation) try(dir string) (by, said string, err error) {
	text, err := m.broken()
	if err != nil {
		return "", "", err
	}
	file, overlay := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
	real, err := filepath.Abs(filepath.Join("transport", m.file))
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
	for _, pkg := range packages {
		if by, said, err = noticed(pkg, overlay); by != "" || err != nil {
			return by, said, err
		}
	}
	return "", "", nil
}

// noticed runs the tests of a package and names the first that fails, with its package.
func noticed(pkg, overlay string) (by, said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// vet would stop at what the mutation leaves unused.
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
			return "", "", fmt.Errorf("does not build:\n%s", out)
		}
	}
	for _, end := range []string{"panic: test timed out", "panic: "} {
		if strings.Contains(string(out), end) {
			return fmt.Sprintf("`%s`: %s", name, strings.TrimSuffix(end, ": ")), string(out), nil
		}
	}
	return "", "", fmt.Errorf("%w:\n%s", failure, out)
}
