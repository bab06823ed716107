package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"softroce/internal/persona"
)

// completionCmd prints the script that a shell loads. The script calls completeCmd.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

//go:embed completion
var completionScripts embed.FS

func (c *completionCmd) Run(e *env) error {
	script, err := completionScripts.ReadFile("completion/softroce." + c.Shell)
	if err != nil {
		return err
	}
	_, err = e.out.Write(script)
	return err
}

// completeCmd prints how a command line may continue: on each line a candidate, a tab and its
// description.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after softroce; the last is incomplete."`
}

func (c *completeCmd) Run(e *env, k *kong.Context) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	for _, c := range candidates(k.Model, words, e) {
		if _, err := fmt.Fprintf(e.out, "%s\t%s\n", c.value, c.help); err != nil {
			return err
		}
	}
	return nil
}

// A candidate is how a word may continue, or a directive to the script.
type candidate struct{ value, help string }

// Directives.
const (
	completeFiles    = ":files"
	completeCommands = ":commands" // that the shell can run
)

// candidates returns the words that begin with the last of words and fit the words before it.
func candidates(app *kong.Application, words []string, names namer) (list []candidate) {
	l := commandLine{app: app, names: names}
	for _, w := range words[:len(words)-1] {
		l.add(w)
	}
	last := words[len(words)-1]
	for _, c := range l.continuations(last) {
		if strings.HasPrefix(c.value, last) || c.value == completeFiles || c.value == completeCommands {
			list = append(list, c)
		}
	}
	return list
}

// A commandLine is the words before the one that is to be completed.
type commandLine struct {
	app   *kong.Application
	names namer

	socket  string     // as named by --socket
	command *kong.Node // nil: none yet
	unknown bool       // something else is in its place
	pending *kong.Flag // its value is the next word
	args    int        // arguments before the next word
	program bool       // the next word belongs to the command line of a program
}

func (l *commandLine) add(w string) {
	name, value, assigned := strings.Cut(w, "=")
	switch f := l.flag(name); {
	case l.program:
		l.args++
	case l.pending != nil:
		l.setFlag(l.pending, w)
	case f != nil && assigned:
		l.setFlag(f, value)
	case f != nil && !f.IsBool():
		l.pending = f
	case w == "--":
		l.program = l.runsProgram()
	case strings.HasPrefix(w, "-"):
	case l.command == nil:
		for _, c := range commands(l.app) {
			if c.Name == w {
				l.command = c
			}
		}
		l.unknown = l.command == nil
	default:
		l.args++
		l.program = l.runsProgram()
	}
}

func (l *commandLine) setFlag(f *kong.Flag, value string) {
	l.pending = nil
	if f.Name == "socket" {
		l.socket = value
	}
}

// runsProgram reports whether the arguments of the command are the command line of a program.
func (l *commandLine) runsProgram() bool {
	return l.command != nil && len(l.command.Positional) > 0 && l.command.Positional[0].Passthrough
}

// flags returns the flags that may be in this place.
func (l *commandLine) flags() []*kong.Flag {
	if l.command != nil {
		return slices.Concat(l.command.Flags, l.app.Flags)
	}
	list := slices.Clone(l.app.Flags)
	for _, f := range commands(l.app)[0].Flags {
		if f.Name == "socket" { // see socketAfterCommand
			list = append(list, f)
		}
	}
	return list
}

// flag returns the flag of a name with its dashes, or nil.
func (l *commandLine) flag(name string) *kong.Flag {
	for _, f := range l.flags() {
		if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

// continuations returns what the next word may be, of which the beginning is known. The caller
// selects from them by it.
func (l *commandLine) continuations(word string) (list []candidate) {
	name, _, assigned := strings.Cut(word, "=")
	f := l.flag(name)
	switch {
	case l.unknown:
		return nil
	case l.program && l.args == 0:
		return []candidate{{value: completeCommands}}
	case l.program:
		return []candidate{{value: completeFiles}}
	case l.pending != nil:
		return l.values(l.pending.Value, word)
	case f != nil && assigned:
		for _, c := range l.values(f.Value, word[len(name)+1:]) {
			if !strings.HasPrefix(c.value, ":") {
				c.value = name + "=" + c.value
			}
			list = append(list, c)
		}
		return list
	case strings.HasPrefix(word, "-"):
		for _, f := range l.flags() {
			if !f.Hidden {
				list = append(list, candidate{"--" + f.Name, f.Help})
			}
		}
		return list
	case l.command == nil:
		return commandNames(l.app)
	}
	if p := l.command.Positional; len(p) > 0 {
		at := min(l.args, len(p)-1)
		if at == l.args || p[at].IsCumulative() {
			return l.values(p[at], word)
		}
	}
	return nil
}

func commandNames(app *kong.Application) (list []candidate) {
	for _, c := range commands(app) {
		list = append(list, candidate{c.Name, c.Help})
	}
	return list
}

// values returns the values of a flag or an argument: those of its enum, or of its tag complete.
// There, <name> stands for what the machine has: see namer.
func (l *commandLine) values(v *kong.Value, word string) (list []candidate) {
	all := v.Tag.Get("complete")
	switch all {
	case "":
		all = v.Enum
	case "<files>":
		return []candidate{{value: completeFiles}}
	case "<programs>":
		return []candidate{{value: completeCommands}}
	case "<commands>":
		return commandNames(l.app)
	case "<personas>":
		for _, name := range persona.Names() {
			list = append(list, candidate{value: name})
		}
		return append(list, candidate{value: completeFiles})
	case "<nics>":
		return l.names.nics(l.socket)
	case "<nics,>":
		known := word[:strings.LastIndex(word, ",")+1]
		for _, c := range l.names.nics(l.socket) {
			list = append(list, candidate{known + c.value, c.help})
		}
		return list
	case "<kinds>":
		return kinds()
	case "<links>":
		return l.names.links("")
	case "<nic=link>":
		if name, _, ok := strings.Cut(word, "="); ok {
			return l.names.links(name + "=")
		}
		return nil
	}
	for value := range strings.SplitSeq(all, ",") {
		if value != "" {
			list = append(list, candidate{value: value})
		}
	}
	return list
}
