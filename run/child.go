package run

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Shells' statuses for a command that did not run.
const (
	StatusFailed        = 125 // what was to be done before it failed (as of env, timeout, nohup)
	StatusNotExecutable = 126
	StatusNotFound      = 127

	statusSignal = 128 // and the signal's number, of a command that a signal ended
)

// forwarded are the signals that are sent on to the program. Those with which a terminal
// stops and continues a job are left alone: they do so with us as with the program.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
}

// execute runs a program in our process group until it ends, and returns its status.
// One that is killed takes the program along.
func execute(file string, argv, env []string) (int, error) {
	// The kernel watches the thread that is the parent, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// They come from here on; what is ignored, as in the background of a script, stays so for
	// the program.
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	p, err := os.StartProcess(file, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	done := make(chan struct{})
	defer close(done)
	go forward(p, signals, done)
	state, err := p.Wait()
	if err != nil {
		return 0, err
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return statusSignal + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

func forward(p *os.Process, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s := <-signals:
			if typed(s) {
				continue
			}
			p.Signal(s)
		}
	}
}

// typed reports whether a signal is one of those that a key sends, and may have come from the
// terminal: then the whole foreground group has it, and the program is in it. To send it
// once more could be taken for a second press of the key.
func typed(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	if err != nil {
		return false // no terminal, no keys
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// status is what a shell would return where a command cannot be run for this reason.
func status(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return StatusNotFound
	case errors.Is(err, ErrNotExecutable) || errors.Is(err, ErrUnsuitable):
		return StatusNotExecutable
	}
	return StatusFailed
}
