// Gen generates the C header of the attach ABI from package abi: the constants, the structs with
// assertions of their sizes, and the comments with C names in place of Go names.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

func main() {
	dir := flag.String("package", ".", "directory of package abi")
	out := flag.String("o", "", "the header to write")
	flag.Parse()
	if err := run(*dir, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(dir, out string) error {
	d, err := read(dir)
	if err != nil {
		return err
	}
	header := d.header()
	if old, err := os.ReadFile(out); err == nil && bytes.Equal(old, header) {
		return nil // make would compile all that includes it
	}
	return os.WriteFile(out, header, 0o644)
}
