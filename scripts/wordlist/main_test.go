package main

import (
	"fmt"
	"slices"
	"testing"
)

const testList = `
[prose]
for ever = forever
he = it
[identifiers]
held = the term for what is held
[both]
parlour(s)? = rendezvous
[exceptions]
parlour(s)? @ x.go built a
held @ y.c
`

func TestWordsAreFoundInProseAndIdentifiers(t *testing.T) {
	for _, c := range []struct {
		file, text string
		want       []string
	}{
		{"x.go", "package x\n// It waits for\n// ever, and he, too.\nvar heldUntil = \"for ever\"\n", []string{"2:for ever", "4:for ever", "3:he", "4:held"}},
		{"x.go", "package x\n// The lock is held. For ever. It stays for. Ever.\nvar theParlours, he int // built a parlour\n", []string{"2:for ever"}},
		{"x.go", "package x\nvar HTTPParlourID int\n", []string{"2:parlour"}},
		{"y.c", "/* a\n * parlour */ int held, for_ever, parlour_x; // he's\n", []string{"2:parlour", "2:parlour"}},
		{"run", "x=held # for ever\necho 'he'\n", []string{"1:for ever", "2:he", "1:held"}},
		{"d.md", "It is held for\never `held` he\n\n```\nheld for ever\n```\n", []string{"1:for ever", "2:he", "2:held", "5:held"}},
		{"parlour.txt", "", []string{"0:parlour"}},
	} {
		l, err := parseList(testList)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range l.search(c.file, []byte(c.text)) {
			got = append(got, fmt.Sprintf("%d:%s", h.line, h.words))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %q:\n%q, want\n%q", c.file, c.text, got, c.want)
		}
	}
}

func TestListErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"x = y":                              `1: "x = y" stands before the first section`,
		"[both]\nx":                          `2: "x": want WORD = INSTEAD`,
		"[both]\nx = y\n[exceptions]\ny @ f": `4: no rule "y"`,
		"[both]\nx = y\nx = z":               `3: rule "x" is there twice`,
	} {
		if _, err := parseList(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
