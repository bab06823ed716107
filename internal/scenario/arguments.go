package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// arguments are the words of a command: plain words in order, and options of the form name=value.
type arguments struct {
	plain   []string
	options []option
}

type option struct{ name, value string }

func parseArguments(args []string) *arguments {
	w := new(arguments)
	for _, a := range args {
		if n, v, ok := strings.Cut(a, "="); ok && n != "" {
			w.options = append(w.options, option{n, v})
		} else {
			w.plain = append(w.plain, a)
		}
	}
	return w
}

// next removes and returns the next plain word. what describes it in the error if there is none.
func (args *arguments) next(what string) (string, error) {
	if len(args.plain) == 0 {
		return "", fmt.Errorf("%s is missing", what)
	}
	p := args.plain[0]
	args.plain = args.plain[1:]
	return p, nil
}

// flag removes a plain word and reports whether it was present.
func (args *arguments) flag(name string) bool {
	i := slices.Index(args.plain, name)
	if i >= 0 {
		args.plain = slices.Delete(args.plain, i, i+1)
	}
	return i >= 0
}

// option removes an option and returns its value, if it is present.
func (args *arguments) option(name string) (string, bool) {
	i := slices.IndexFunc(args.options, func(o option) bool { return o.name == name })
	if i < 0 {
		return "", false
	}
	v := args.options[i].value
	args.options = slices.Delete(args.options, i, i+1)
	return v, true
}

// peek returns the value of an option without removing it.
func (args *arguments) peek(name string) (string, bool) {
	for _, o := range args.options {
		if o.name == name {
			return o.value, true
		}
	}
	return "", false
}

// duration removes an option that is a duration. Without the option it returns 0.
func (args *arguments) duration(name string) (time.Duration, error) {
	v, ok := args.option(name)
	if !ok {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s=%s: want a duration such as 5ms", name, v)
	}
	return d, nil
}

// number removes an option that is a number and stores it in to. Without the option it leaves to
// unchanged.
func (args *arguments) number(name string, bits int, to *uint64) error {
	v, ok := args.option(name)
	if !ok {
		return nil
	}
	n, err := parseNumber(v, bits)
	if err != nil {
		return fmt.Errorf("%s=%s: %w", name, v, err)
	}
	*to = n
	return nil
}

func parseNumber(v string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(v, 0, bits)
	if err != nil {
		return 0, fmt.Errorf("want a number of up to %d bits", bits)
	}
	return n, nil
}

// end returns an error if arguments are left.
func (args *arguments) end() error {
	if len(args.plain) > 0 {
		return fmt.Errorf("unexpected argument %q", args.plain[0])
	}
	if len(args.options) > 0 {
		return fmt.Errorf("unknown option %q", args.options[0].name)
	}
	return nil
}
