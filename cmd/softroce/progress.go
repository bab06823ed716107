package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	progressDelay    = time.Second            // what takes less time shows no progress
	progressInterval = 200 * time.Millisecond // between two updates
)

// showProgress shows text, which another goroutine calls, in the last line of standard error until
// the returned function is called, which removes the line. It does so only on a terminal, and only
// if that takes longer than progressDelay.
func (e *env) showProgress(text fmt.Stringer) (stop func()) {
	if e.err != os.Stderr || !isTerminal(os.Stderr) {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		wait := progressDelay
		for shown := false; ; shown = true {
			select {
			case <-done:
				if shown {
					fmt.Fprint(e.err, eraseLine)
				}
				return
			case <-time.After(wait):
			}
			fmt.Fprint(e.err, eraseLine, fit(text.String(), width(os.Stderr)))
			wait = progressInterval
		}
	}()
	return func() { close(done); <-ended }
}

// eraseLine returns to the beginning of a terminal's line and erases it.
const eraseLine = "\r\x1b[K"

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// width returns how many characters a line of a terminal has.
func width(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80
	}
	return int(size.Col)
}

// fit cuts text so that the cursor stays in the line.
func fit(text string, columns int) string {
	r := []rune(text)
	return string(r[:min(len(r), columns-1)])
}
