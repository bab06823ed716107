// Prosewidth finds lines of prose that are wider than 100 columns: comments on lines of their own
// in code and scripts, and text in Markdown, except tables, code and lines with a link.
//
//	go run ./scripts/prosewidth FILE...
//
// A tab counts as four columns. The exit status is 1 if a line is too wide.
package main

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 100
	tabColumns = 4
)

func main() {
	if len(os.Args) == 1 {
		fmt.Fprintln(os.Stderr, "prosewidth: no files to check")
		os.Exit(2)
	}
	failed := false
	for _, file := range os.Args[1:] {
		text, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "prosewidth:", err)
			os.Exit(2)
		}
		for _, n := range tooWide(file, string(text)) {
			fmt.Printf("%s:%d: wider than %d columns\n", file, n, maxColumns)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// tooWide returns the numbers of the lines of prose that are too wide.
func tooWide(file, text string) (lines []int) {
	markdown, code := strings.HasSuffix(file, ".md"), false
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		if markdown && strings.HasPrefix(line, "```") {
			code = !code
		}
		if columns(line) <= maxColumns {
			continue
		}
		if markdown {
			table, indented := strings.HasPrefix(line, "|"), strings.HasPrefix(line, "    ")
			if !code && !table && !indented && !strings.Contains(line, "](") {
				lines = append(lines, n)
			}
		} else if isComment(file, strings.TrimSpace(line)) {
			lines = append(lines, n)
		}
	}
	return lines
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
}

// isComment reports whether a line is nothing but a comment that can be wrapped: not a directive,
// not an itemized line of several columns.
func isComment(file, line string) bool {
	switch {
	case strings.HasSuffix(file, ".go"):
		return strings.HasPrefix(line, "// ")
	case strings.HasSuffix(file, ".c"), strings.HasSuffix(file, ".h"):
		return strings.HasPrefix(line, "* ") || strings.HasPrefix(line, "/* ")
	}
	return strings.HasPrefix(line, "# ")
}
