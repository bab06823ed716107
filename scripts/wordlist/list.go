package main

import (
	"fmt"
	"regexp"
	"strings"
)

// A list is the contents of words.txt.
type list struct {
	rules      []*rule
	exceptions []*exception
}

// A rule is a word, or several in a row, that is not to be used.
type rule struct {
	text    string // as in words.txt
	words   []*regexp.Regexp
	instead string
	prose   bool // applies to comments, strings and documents
	code    bool // applies to identifiers and file names
}

// An exception allows a rule's words in files, on lines that contain some text.
type exception struct {
	rule   string
	prefix string // of the file's path
	text   string // "" is any line
	line   int    // in words.txt
	used   bool
}

// sections are the headings of words.txt, and whether their rules apply to prose and to code.
var sections = map[string][2]bool{"[prose]": {true, false}, "[identifiers]": {false, true}, "[both]": {true, true}}

const exceptionSection = "[exceptions]"

func parseList(text string) (*list, error) {
	l := &list{}
	known := map[string]bool{}
	section := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if _, ok := sections[line]; ok || line == exceptionSection {
			section = line
			continue
		}
		var err error
		switch section {
		case "":
			err = fmt.Errorf("%q stands before the first section", line)
		case exceptionSection:
			var e *exception
			if e, err = parseException(line, i+1); err == nil && !known[e.rule] {
				err = fmt.Errorf("no rule %q", e.rule)
			}
			l.exceptions = append(l.exceptions, e)
		default:
			var r *rule
			if r, err = parseRule(line, sections[section]); err == nil && known[r.text] {
				err = fmt.Errorf("rule %q is there twice", r.text)
			}
			if err == nil {
				known[r.text] = true
				l.rules = append(l.rules, r)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", i+1, err)
		}
	}
	return l, nil
}

// parseRule reads "WORD... = INSTEAD", where each word is a regular expression.
func parseRule(line string, where [2]bool) (*rule, error) {
	text, instead, ok := strings.Cut(line, " = ")
	if !ok {
		return nil, fmt.Errorf("%q: want WORD = INSTEAD", line)
	}
	r := &rule{text: strings.TrimSpace(text), instead: strings.TrimSpace(instead), prose: where[0], code: where[1]}
	for _, w := range strings.Fields(r.text) {
		re, err := regexp.Compile("^(?:" + w + ")$")
		if err != nil {
			return nil, err
		}
		r.words = append(r.words, re)
	}
	return r, nil
}

var exceptionForm = regexp.MustCompile(`^(.+?) @ (\S+)(?: (.+))?$`)

// parseException reads "RULE @ PATH-PREFIX [TEXT OF THE LINE]".
func parseException(line string, number int) (*exception, error) {
	m := exceptionForm.FindStringSubmatch(line)
	if m == nil {
		return nil, fmt.Errorf("%q: want RULE @ PATH [TEXT]", line)
	}
	return &exception{rule: m[1], prefix: m[2], text: m[3], line: number}, nil
}

// A hit is a place where a rule's words were found.
type hit struct {
	rule  *rule
	line  int
	words string
}

// search returns the hits in a file, its name included as line 0.
func (l *list) search(file string, text []byte) []hit {
	lines := strings.Split(string(text), "\n")
	tokens := append(splitWords(file, 0, true), tokenize(file, text)...)
	var hits []hit
	for _, r := range l.rules {
		for i := range tokens {
			if words, ok := r.match(tokens[i:]); ok {
				line := tokens[i].line
				context := file
				if line > 0 {
					context = lines[line-1]
				}
				if !l.excepted(r, file, context) {
					hits = append(hits, hit{r, line, words})
				}
			}
		}
	}
	return hits
}

func (r *rule) match(tokens []token) (words string, ok bool) {
	if len(tokens) < len(r.words) {
		return "", false
	}
	var b strings.Builder
	for i, w := range r.words {
		t := tokens[i]
		if t.code && !r.code || !t.code && !r.prose || i > 0 && t.breaks || !w.MatchString(t.word) {
			return "", false
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(t.word)
	}
	return b.String(), true
}

func (l *list) excepted(r *rule, file, context string) bool {
	for _, e := range l.exceptions {
		if e.rule == r.text && strings.HasPrefix(file, e.prefix) && strings.Contains(context, e.text) {
			e.used = true
			return true
		}
	}
	return false
}
