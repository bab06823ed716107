package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/top"
)

type topCmd struct {
	daemonFlags
	Interval time.Duration `default:"1s" placeholder:"DURATION" help:"Time between two updates, over which rates are measured (default: 1s)."`
	Once     bool          `help:"Print one update and exit, as without a terminal."`
}

// minInterval keeps the daemon from being asked all the time.
const minInterval = 100 * time.Millisecond

func (t *topCmd) Run(e *env) error {
	if t.Interval < minInterval {
		return usagef("--interval %v: want at least %v", t.Interval, minInterval)
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	if t.Once || e.out != os.Stdout || !isTerminal(os.Stdout) {
		return t.once(e, c.Client)
	}
	return t.watch(e, c)
}

// once prints what has happened in one interval.
func (t *topCmd) once(e *env, c *control.Client) error {
	before, at, err := timedSnapshot(e, c)
	if err != nil {
		return err
	}
	select {
	case <-e.Done():
		return e.Err()
	case <-time.After(t.Interval):
	}
	now, end, err := timedSnapshot(e, c)
	if err != nil {
		return err
	}
	f := top.Frame{Before: before, Now: now, Elapsed: end.Sub(at)}
	return f.WriteText(e.out, top.Size{})
}

func timedSnapshot(e *env, c *control.Client) (*daemon.Snapshot, time.Time, error) {
	s, err := snapshot(e, c)
	return s, time.Now(), err
}

// Escape sequences of the alternate screen: it leaves what was on the terminal alone.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeScreen  = "\x1b[H"
	clearBelow  = "\x1b[J"
	clearRight  = "\x1b[K"
)

// watch redraws the screen until q or Ctrl-C.
func (t *topCmd) watch(e *env, c *control.Found) error {
	before, at, err := timedSnapshot(e, c.Client)
	if err != nil {
		return err
	}
	quit, restore := quitKey(os.Stdin)
	defer restore()
	fmt.Fprint(e.out, enterScreen)
	defer fmt.Fprint(e.out, leaveScreen)
	f := top.Frame{Before: before, Now: before}
	for {
		if err := draw(e, &f); err != nil {
			return err
		}
		select {
		case <-e.Done():
			return nil
		case <-quit:
			return nil
		case <-time.After(t.Interval):
		}
		now, end, err := timedSnapshot(e, c.Client)
		switch {
		case e.Err() != nil:
			return nil
		case errors.Is(err, control.ErrGone):
			return fmt.Errorf("the daemon on %s has ended: %w", c.Socket, err)
		case err != nil:
			return err
		}
		f = top.Frame{Before: f.Now, Now: now, Elapsed: end.Sub(at)}
		at = end
	}
}

// draw replaces the screen without clearing it first, which would flicker.
func draw(e *env, f *top.Frame) error {
	size := top.Size{Columns: 80, Rows: 24}
	if s, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil && s.Col > 0 && s.Row > 0 {
		size = top.Size{Columns: int(s.Col), Rows: int(s.Row)}
	}
	var text bytes.Buffer
	if err := f.WriteText(&text, size); err != nil {
		return err
	}
	screen := homeScreen + string(bytes.ReplaceAll(text.Bytes(), []byte("\n"), []byte(clearRight+"\r\n"))) + clearRight + clearBelow
	_, err := fmt.Fprint(e.out, screen)
	return err
}

// quitKey returns a channel that is closed when q is pressed, and a function that restores the
// terminal. If standard input is no terminal, the channel is never closed.
func quitKey(tty *os.File) (<-chan struct{}, func()) {
	quit := make(chan struct{})
	saved, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		return quit, func() {}
	}
	raw := *saved
	raw.Lflag &^= unix.ICANON | unix.ECHO
	if unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, &raw) != nil {
		return quit, func() {}
	}
	go func() {
		key := make([]byte, 1)
		for {
			if n, err := tty.Read(key); n == 0 || err != nil {
				return
			}
			if key[0] == 'q' || key[0] == 'Q' {
				close(quit)
				return
			}
		}
	}()
	return quit, func() { unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, saved) }
}
