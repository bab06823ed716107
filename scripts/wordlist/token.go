package main

import (
	"bytes"
	"go/scanner"
	gotoken "go/token"
	"regexp"
	"strings"
	"unicode"
)

// A token is a word of a file, in lower case.
type token struct {
	word   string
	line   int
	code   bool // it is part of an identifier
	breaks bool // a sentence or an identifier ended before it
}

// tokenize splits a file into the words of its prose and of its identifiers.
func tokenize(file string, text []byte) []token {
	switch formatOf(file) {
	case goFormat:
		return tokenizeGo(text)
	case cFormat:
		return tokenizeMatches(cParts, text)
	case hashFormat:
		return tokenizeMatches(hashParts, text)
	case markdownFormat:
		return tokenizeMarkdown(text)
	}
	return nil
}

func tokenizeGo(text []byte) []token {
	files := gotoken.NewFileSet()
	f := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(f, text, func(gotoken.Position, string) {}, scanner.ScanComments)
	var tokens []token
	afterComment := false
	for {
		pos, kind, literal := s.Scan()
		switch kind {
		case gotoken.EOF:
			return tokens
		case gotoken.COMMENT, gotoken.STRING:
			words := splitWords(literal, f.Line(pos), false)
			if kind == gotoken.COMMENT && afterComment && len(words) > 0 && len(tokens) > 0 {
				// A sentence goes on at the next line.
				words[0].breaks = endsSentence(text[:f.Offset(pos)])
			}
			tokens = append(tokens, words...)
		case gotoken.IDENT:
			tokens = append(tokens, splitWords(literal, f.Line(pos), true)...)
		}
		afterComment = kind == gotoken.COMMENT
	}
}

// endsSentence reports whether text ends with a full stop or the like.
func endsSentence(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) > 0 && strings.IndexByte(sentenceEnds, text[len(text)-1]) >= 0
}

const sentenceEnds = ".!?;:\"()"

// Patterns whose first group is prose and whose second group is an identifier.
var (
	cParts    = regexp.MustCompile(`(?s)(//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*")|([A-Za-z_]\w*)`)
	hashParts = regexp.MustCompile(`(?m)((?:^|[ \t])#.*$|"(?:\\.|[^"\\\n])*"|'[^'\n]*')|([A-Za-z_]\w*)`)
)

func tokenizeMatches(parts *regexp.Regexp, text []byte) []token {
	var tokens []token
	line, at := 1, 0
	wasProse := false
	for _, m := range parts.FindAllSubmatchIndex(text, -1) {
		line += strings.Count(string(text[at:m[0]]), "\n")
		at = m[0]
		code := m[4] >= 0
		words := splitWords(string(text[m[0]:m[1]]), line, code)
		if !code && wasProse && len(words) > 0 {
			words[0].breaks = endsSentence(text[:m[0]])
		}
		wasProse = !code
		tokens = append(tokens, words...)
	}
	return tokens
}

var codeSpan = regexp.MustCompile("`[^`\n]*`|^    .*$|^```.*$")

func tokenizeMarkdown(text []byte) []token {
	var tokens []token
	fenced, before := false, 0
	lines := strings.Split(string(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "```") {
			fenced = !fenced
			continue
		}
		at := 0
		spans := codeSpan.FindAllStringIndex(l, -1)
		if fenced {
			spans = [][]int{{0, len(l)}}
		}
		for _, s := range spans {
			tokens = append(tokens, splitWords(l[at:s[0]], i+1, false)...)
			tokens = append(tokens, splitWords(l[s[0]:s[1]], i+1, true)...)
			at = s[1]
		}
		tokens = append(tokens, splitWords(l[at:], i+1, false)...)
		if before > 0 && before < len(tokens) && !startsBlock(l) {
			tokens[before].breaks = tokens[before].code || endsSentence([]byte(lines[i-1]))
		}
		before = len(tokens)
	}
	return tokens
}

// startsBlock reports whether a line of Markdown begins a heading, list item or table row.
func startsBlock(l string) bool {
	l = strings.TrimSpace(l)
	return l == "" || strings.ContainsRune("#*-|>+", rune(l[0]))
}

// splitWords splits prose or an identifier that begins on a line.
func splitWords(text string, line int, code bool) []token {
	var tokens []token
	var word []rune
	breaks := true
	end := func() {
		if len(word) > 0 {
			tokens = append(tokens, token{strings.ToLower(strings.TrimRight(string(word), "'")), line, code, breaks})
			word, breaks = word[:0], false
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case unicode.IsLetter(r) || r == '\'' && len(word) > 0:
			if len(word) > 0 && unicode.IsUpper(r) &&
				(unicode.IsLower(word[len(word)-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
				end()
			}
			word = append(word, r)
		default:
			end()
			if r == '\n' {
				line++
			}
			if strings.ContainsRune(sentenceEnds, r) {
				breaks = true
			}
		}
	}
	end()
	return tokens
}
