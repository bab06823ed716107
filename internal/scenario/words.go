package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// words are those of a command: plain ones in their order, and options, name=value.
type words struct {
	plain   []string
	options []option
}

type option struct{ name, value string }

func parseWords(args []string) *words {
	w := new(words)
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
func (w *words) next(what string) (string, error) {
	if len(w.plain) == 0 {
		return "", fmt.Errorf("%s is missing", what)
	}
	p := w.plain[0]
	w.plain = w.plain[1:]
	return p, nil
}

// flag takes a plain word if it is there.
func (w *words) flag(name string) bool {
	i := slices.Index(w.plain, name)
	if i >= 0 {
		w.plain = slices.Delete(w.plain, i, i+1)
	}
	return i >= 0
}

// option takes an option if it is there.
func (w *words) option(name string) (string, bool) {
	i := slices.IndexFunc(w.options, func(o option) bool { return o.name == name })
	if i < 0 {
		return "", false
	}
	v := w.options[i].value
	w.options = slices.Delete(w.options, i, i+1)
	return v, true
}

// peek looks at an option.
func (w *words) peek(name string) (string, bool) {
	for _, o := range w.options {
		if o.name == name {
			return o.value, true
		}
	}
	return "", false
}

// duration takes an option that is a time, 0 if it is not there.
func (w *words) duration(name string) (time.Duration, error) {
	v, ok := w.option(name)
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
func (w *words) number(name string, bits int, to *uint64) error {
	v, ok := w.option(name)
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
func (w *words) end() error {
	if len(w.plain) > 0 {
		return fmt.Errorf("%q is not understood here", w.plain[0])
	}
	if len(w.options) > 0 {
		return fmt.Errorf("option %q is not known here", w.options[0].name)
	}
	return nil
}
