package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

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
// One that is killed takes the program along. A signal that came before there was a program to have it ends ctx: then
// there is none.
func execute(ctx context.Context, file string, argv, env []string) (int, error) {
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
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	p, err := os.StartProcess(file, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 0, fmt.Errorf("%w %s: %w", ErrNotExecutable, file, errno(err))
	}
	done := make(chan struct{})
	defer close(done)
	go forward(p, signals, done)
	for {
		var state unix.Siginfo
		// WNOWAIT: what is seen here is taken away below, by who knows what to do with it.
		err := unix.Waitid(unix.P_PID, p.Pid, &state, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("waitid", err)
		case state.Code == cldStopped:
			suspendWith(p)
		default:
			return exitStatus(p)
		}
	}
}

// ended is the status of a program that has ended.
func exitStatus(p *os.Process) (int, error) {
	state, err := p.Wait()
	if err != nil {
		return 0, err
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return statusSignal + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

// cldStopped is CLD_STOPPED of <signal.h>.
const cldStopped = 5

// continuing is how long it may take until all processes of a group run again that a terminal had stopped.
const continueGrace = 20 * time.Millisecond

// stopAlong stops us with a program that stopped by itself, as a shell does that is told to suspend: the shell that waits
// for us would not know that it is its turn. When we are continued, so is the program, which has the terminal again, if it
// had it. A program that somebody has stopped without a terminal is none of that.
func suspendWith(p *os.Process) {
	time.Sleep(continueGrace) // what the terminal stopped, with us, may be about to go on, with us
	var state unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.Pid, &state, unix.WSTOPPED|unix.WNOHANG, nil)
	if err != nil || state.Code != cldStopped {
		return
	}
	tty, err := openTerminal()
	if err != nil {
		return
	}
	defer tty.Close()
	group, err := unix.Getpgid(p.Pid)
	if has := tty.foreground(); err != nil || has != group && has != unix.Getpgrp() {
		return
	} else if has != group {
		group = 0
	}
	// To this thread: another one would let it go on for a moment.
	unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	if group != 0 && tty.foreground() == unix.Getpgrp() {
		unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, group)
	}
	p.Signal(unix.SIGCONT)
}

func forward(p *os.Process, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s := <-signals:
			if fromKeyboard(s) {
				continue
			}
			p.Signal(s)
		}
	}
}

// typed reports whether a signal is one of those that a key sends, and may have come from the
// terminal: then the whole foreground group has it, and the program is in it. To send it
// once more could be taken for a second press of the key.
func fromKeyboard(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := openTerminal()
	if err != nil {
		return false // no terminal, no keys
	}
	defer tty.Close()
	return tty.foreground() == unix.Getpgrp()
}

// A terminal is the one that the process was started from.
type terminal struct{ *os.File }

func openTerminal() (terminal, error) {
	f, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	return terminal{f}, err
}

// foreground is the process group that has the terminal, 0 if there is none.
func (t terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// status is what a shell would return where a command cannot be run for this reason.
func shellStatus(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return StatusNotFound
	case errors.Is(err, ErrNotExecutable) || errors.Is(err, ErrUnsuitable):
		return StatusNotExecutable
	}
	return StatusFailed
}
