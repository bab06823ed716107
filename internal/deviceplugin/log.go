package deviceplugin

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// A logger writes lines. Its methods may be called from any goroutine.
type logger struct {
	mu   sync.Mutex
	out  io.Writer         // what happens in normal operation
	errs io.Writer         // what a user may have to mend
	last map[string]string // the last line about each subject
}

func newLogger(out, errs io.Writer) *logger {
	return &logger{out: out, errs: errs, last: map[string]string{}}
}

// note writes a line about normal operation.
func (l *logger) note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, format+"\n", a...)
}

// once writes a line about a problem, unless the last line about the subject was the same.
func (l *logger) once(subject, format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := strings.ReplaceAll(fmt.Sprintf(format, a...), "\n", "; ")
	if l.last[subject] == line {
		return
	}
	l.last[subject] = line
	fmt.Fprintf(l.errs, "softroce: %s\n", line)
}

// clear says that a subject has no problem any more.
func (l *logger) clear(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.last, subject)
}
