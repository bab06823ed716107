package main

import (
	"bytes"
	"fmt"
	"strings"
)

const preamble = `/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach ABI of softroce: what a client and the daemon share.
 *
 * Code generated from package internal/abi. DO NOT EDIT.
 * docs/reference/attach-abi.md explains it.
 */
#ifndef SOFTROCE_ABI_H
#define SOFTROCE_ABI_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the attach ABI is for little-endian machines"
#endif
`

// header returns the C header.
func (d *definition) header() []byte {
	var b bytes.Buffer
	b.WriteString(preamble)
	for _, item := range d.items {
		switch item := item.(type) {
		case group:
			item.write(&b)
		case record:
			item.write(&b)
		}
	}
	b.WriteString("\n#endif /* SOFTROCE_ABI_H */\n")
	return b.Bytes()
}

// commentWidth is the width at which comments are wrapped, in bytes.
const commentWidth = 90

func writeComment(b *bytes.Buffer, text string) {
	if text == "" {
		b.WriteString("\n")
		return
	}
	b.WriteString("\n/*\n")
	line := " *"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > commentWidth {
			b.WriteString(line + "\n")
			line = " *"
		}
		line += " " + word
	}
	b.WriteString(line + "\n */\n")
}

func note(text string) string {
	if text == "" {
		return ""
	}
	return " /* " + strings.ReplaceAll(text, "*/", "* /") + " */"
}

func (g *group) write(b *bytes.Buffer) {
	writeComment(b, g.doc)
	for _, c := range g.consts {
		suffix := ""
		if len(c.value) > 9 {
			suffix = "ull"
		}
		fmt.Fprintf(b, "#define %s %s%s%s\n", c.name, c.value, suffix, note(c.note))
	}
}

func (r *record) write(b *bytes.Buffer) {
	writeComment(b, r.doc)
	fmt.Fprintf(b, "%s {\n", r.name)
	pads := 0
	for _, f := range r.fields {
		if f.name == "" {
			f.name = fmt.Sprintf("reserved%d", pads)
			pads++
		}
		dim := ""
		if f.count > 0 {
			dim = fmt.Sprintf("[%d]", f.count)
		}
		fmt.Fprintf(b, "\t%s %s%s;%s\n", f.ctype, f.name, dim, note(f.note))
	}
	fmt.Fprintf(b, "};\n_Static_assert(sizeof(%s) == %d, \"layout\");\n", r.name, r.size)
}
