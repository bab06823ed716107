package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// words are those of a command: plain ones in their order, and options, name=value.
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

// next takes the next plain word; what says what it is to be.
func (args *arguments) next(what string) (string, error) {
	if len(args.plain) == 0 {
		return "", fmt.Errorf("%s is missing", what)
	}
	p := args.plain[0]
	args.plain = args.plain[1:]
	return p, nil
}

// flag takes a plain word if it is there.
func (args *arguments) flag(name string) bool {
	i := slices.Index(args.plain, name)
	if i >= 0 {
		args.plain = slices.Delete(args.plain, i, i+1)
	}
	return i >= 0
}

// option takes an option if it is there.
func (args *arguments) option(name string) (string, bool) {
	i := slices.IndexFunc(args.options, func(o option) bool { return o.name == name })
	if i < 0 {
		return "", false
	}
	v := args.options[i].value
	args.options = slices.Delete(args.options, i, i+1)
	return v, true
}

// peek looks at an option.
func (args *arguments) peek(name string) (string, bool) {
	for _, o := range args.options {
		if o.name == name {
			return o.value, true
		}
	}
	return "", false
}

// duration takes an option that is a time, 0 if it is not there.
func (args *arguments) duration(name string) (time.Duration, error) {
	v, ok := args.option(name)
	if !ok {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s=%s: must be a time such as 5ms", name, v)
	}
	return d, nil
}

// number takes an option that is a number; it stays as it is if the option is not there.
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
		return 0, fmt.Errorf("must be a number of up to %d bits", bits)
	}
	return n, nil
}

// end makes sure that nothing is left.
func (args *arguments) end() error {
	if len(args.plain) > 0 {
		return fmt.Errorf("%q is not understood here", args.plain[0])
	}
	if len(args.options) > 0 {
		return fmt.Errorf("option %q is not known here", args.options[0].name)
	}
	return nil
}
