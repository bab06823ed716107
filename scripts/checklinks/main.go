// Checklinks verifies the relative links of Markdown files: the target file exists, and the #anchor
// is a heading of it.
//
//	go run ./scripts/checklinks FILE...
//
// Links to other sites are not followed.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) == 1 {
		fmt.Fprintln(os.Stderr, "checklinks: no files to check")
		os.Exit(2)
	}
	broken := 0
	for _, file := range os.Args[1:] {
		found, err := check(file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "checklinks:", err)
			os.Exit(1)
		}
		for _, f := range found {
			fmt.Println(f)
		}
		broken += len(found)
	}
	if broken > 0 {
		os.Exit(1)
	}
}

var (
	link     = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\))?)\)`)
	absolute = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
	heading  = regexp.MustCompile(`^#{1,6} +(.*?)(?: +#+)?$`)
	anchor   = regexp.MustCompile(`<a (?:id|name)="([^"]+)">`)
	markup   = regexp.MustCompile("`|\\*|\\[([^]]*)\\]\\([^)]*\\)")
)

// check returns the broken links of a file, one line each.
func check(file string) (broken []string, err error) {
	lines, err := proseLines(file)
	if err != nil {
		return nil, err
	}
	for number, text := range lines {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if problem := checkTarget(file, m[1]); problem != "" {
				broken = append(broken, fmt.Sprintf("%s:%d: %s: %s", file, number+1, m[1], problem))
			}
		}
	}
	return broken, nil
}

func checkTarget(from, target string) (problem string) {
	if absolute.MatchString(target) {
		return ""
	}
	path, fragment, hasFragment := strings.Cut(target, "#")
	to := from
	if path != "" {
		to = filepath.Join(filepath.Dir(from), path)
	}
	info, err := os.Stat(to)
	if err != nil {
		return "no such file"
	}
	if !hasFragment || filepath.Ext(to) != ".md" || info.IsDir() {
		return ""
	}
	have, err := anchors(to)
	if err != nil {
		return err.Error()
	}
	if !have[fragment] {
		return "no such heading"
	}
	return ""
}

// anchors returns the anchors that a forge makes of a file's headings, and the explicit ones.
func anchors(file string) (map[string]bool, error) {
	lines, err := proseLines(file)
	if err != nil {
		return nil, err
	}
	have, count := map[string]bool{}, map[string]int{}
	for _, text := range lines {
		for _, m := range anchor.FindAllStringSubmatch(text, -1) {
			have[m[1]] = true
		}
		m := heading.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		name := slug(m[1])
		if n := count[name]; n > 0 {
			have[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			have[name] = true
		}
		count[name]++
	}
	return have, nil
}

// slug is the anchor of a heading: lower case, spaces as hyphens, without punctuation.
func slug(heading string) string {
	heading = markup.ReplaceAllString(heading, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 0x7f:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// proseLines returns the lines of a file, with those of code blocks empty.
func proseLines(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(b), "\n")
	inCode := false
	for i, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if fence {
			inCode = !inCode
		}
		if fence || inCode || strings.HasPrefix(l, "    ") {
			lines[i] = ""
		}
	}
	return lines, nil
}
