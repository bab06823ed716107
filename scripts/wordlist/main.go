// Wordlist finds words that the project does not use, in prose and in identifiers.
//
//	go run ./scripts/wordlist [-count] [-list FILE] [FILE...]
//
// Without arguments it reads every text file that git knows or would add. The words are in
// words.txt, with what to write instead, and so are the places where a word is the right one.
// Identifiers are split at underscores and case changes, so a word is found in camelCase and
// snake_case too. The exit status is 1 if something is found.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed words.txt
var wordsText string

func main() {
	count := flag.Bool("count", false, "print how often each word is found instead of where")
	listFile := flag.String("list", "", "read the words from another file than words.txt")
	flag.Parse()
	found, err := run(*listFile, flag.Args(), *count)
	if err != nil {
		fmt.Fprintln(os.Stderr, "wordlist:", err)
		os.Exit(2)
	}
	if found {
		os.Exit(1)
	}
}

func run(listFile string, files []string, count bool) (found bool, err error) {
	text := wordsText
	if listFile == "" {
		listFile = "scripts/wordlist/words.txt"
	} else if b, err := os.ReadFile(listFile); err != nil {
		return false, err
	} else {
		text = string(b)
	}
	l, err := parseList(text)
	if err != nil {
		return false, fmt.Errorf("%s:%w", listFile, err)
	}
	whole := len(files) == 0
	if whole {
		if files, err = projectFiles(); err != nil {
			return false, err
		}
	}
	counts := map[string]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			continue // deleted, and git does not know yet
		}
		if err != nil {
			return false, err
		}
		for _, hit := range l.search(f, text) {
			found = true
			counts[hit.rule.text]++
			if !count {
				fmt.Printf("%s:%d: %q: write %s\n", f, hit.line, hit.words, hit.rule.instead)
			}
		}
	}
	if count {
		for _, r := range l.rules {
			if n := counts[r.text]; n > 0 {
				fmt.Printf("%6d %s\n", n, r.text)
			}
		}
	}
	if whole {
		for _, e := range l.exceptions {
			if !e.used {
				found = true
				fmt.Printf("%s:%d: this exception is not needed\n", listFile, e.line)
			}
		}
	}
	return found, nil
}

// projectFiles lists the text files to search. CHANGELOG.md names what was renamed.
func projectFiles() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	excluded := []string{"CHANGELOG.md", "LICENSE", "go.sum", "scripts/wordlist/words.txt"}
	var files []string
	for f := range strings.Lines(string(out)) {
		f = strings.TrimSpace(f)
		if info, err := os.Stat(f); err != nil || info.IsDir() || slices.Contains(excluded, f) || formatOf(f) == unknownFormat {
			continue
		}
		files = append(files, f)
	}
	return files, nil
}

// A format says how prose and code are distinguished in a file.
type format int

const (
	unknownFormat format = iota
	goFormat
	cFormat
	hashFormat // comments begin with #
	markdownFormat
)

func formatOf(file string) format {
	if strings.Contains(file, "testdata/fuzz/") {
		return unknownFormat
	}
	switch filepath.Ext(file) {
	case ".go":
		return goFormat
	case ".c", ".h":
		return cFormat
	case ".md":
		return markdownFormat
	case ".py", ".sh", ".yaml", ".yml", ".txt", ".txtar", ".service", ".sysusers", ".map":
		return hashFormat
	case "":
		return hashFormat // scripts and Makefiles
	}
	return unknownFormat
}
