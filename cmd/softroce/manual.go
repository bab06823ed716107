package main

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// manualCmd writes the manual page from the model that parses the command line. It is for
// packagers.
type manualCmd struct{}

// manualSections holds the sections that cannot be derived from the model.
//
//go:embed manual.roff
var manualSections string

func (m *manualCmd) Run(e *env, k *kong.Context) error {
	_, err := fmt.Fprint(e.out, manual(k.Model))
	return err
}

// manual returns the page softroce(1).
func manual(app *kong.Application) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH SOFTROCE 1 \"\" \"softroce %s\"\n.SH NAME\nsoftroce \\- an RDMA NIC in userspace\n", release())
	b.WriteString(".SH SYNOPSIS\n")
	for _, c := range commands(app) {
		fmt.Fprintf(&b, ".B softroce %s\n%s\n.br\n", c.Name, roff(strings.TrimPrefix(c.Summary(), c.Name)))
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", roff(app.Help))
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commands(app) {
		fmt.Fprintf(&b, ".SS softroce %s\n%s\n", roff(c.Name), roff(c.Help))
		for _, p := range c.Positional {
			fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(p.Summary()), roff(p.Help))
		}
		writeFlags(&b, c.Flags)
	}
	b.WriteString(".SH OPTIONS\nAll commands accept these options.\n")
	writeFlags(&b, app.Flags)
	b.WriteString(manualSections)
	return b.String()
}

// commands returns the commands that are not hidden.
func commands(app *kong.Application) []*kong.Node { return app.Leaves(true) }

func writeFlags(b *strings.Builder, flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(f.String()), roff(f.Help))
	}
}

// roff escapes plain text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "…", `\&...`).Replace(strings.TrimSpace(s))
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
