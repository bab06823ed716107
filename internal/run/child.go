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

// The statuses that a shell returns for a command that did not run.
const (
	StatusFailed        = 125 // a preparation failed, as for env, timeout and nohup
	StatusNotExecutable = 126
	StatusNotFound      = 127

	statusSignal = 128 // plus the number of the signal that ended the command
)

// forwarded are the signals that are forwarded to the program. The job control signals of the
// terminal are not: the kernel sends them to the whole process group.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
}

// execute runs a program in our process group until it exits, and returns its PID and status. If
// softroce is killed, the kernel kills the program too. If a signal has already ended ctx, the
// program is not started.
func execute(ctx context.Context, file string, argv, env []string, stdout *os.File) (pid, status int, err error) {
	// Pdeathsig refers to the parent thread, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// From here on signals go to the channel. Ignored signals stay ignored, also in the program, as
	// for a script's background jobs.
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	p, err := os.StartProcess(file, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%w %s: %w", ErrNotExecutable, file, errno(err))
	}
	done := make(chan struct{})
	defer close(done)
	go forward(p, signals, done)
	for {
		var state unix.Siginfo
		// WNOWAIT leaves the state to the waits below.
		err := unix.Waitid(unix.P_PID, p.Pid, &state, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, 0, os.NewSyscallError("waitid", err)
		case state.Code == cldStopped:
			suspendWith(p)
		default:
			status, err := exitStatus(p)
			return p.Pid, status, err
		}
	}
}

// exitStatus returns the status of a program that has exited.
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

// continueGrace is how long the processes of a stopped group may take to resume after SIGCONT.
const continueGrace = 20 * time.Millisecond

// suspendWith stops this process after the program has stopped itself, as a shell does on suspend.
// Otherwise the outer shell, which waits for this process, would not regain control. When this
// process continues, it continues the program and gives it the terminal back if it had it. It does
// nothing for programs that do not own the terminal.
func suspendWith(p *os.Process) {
	time.Sleep(continueGrace) // the terminal may have stopped and continued both processes
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
	// The signal goes to this thread: if another one took it, this thread would run on for a
	// moment.
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

// fromKeyboard reports whether a signal may come from a key of the terminal. The kernel sends such
// a signal to the whole foreground group, which includes the program. Forwarding it would look like
// a second key press.
func fromKeyboard(s os.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := openTerminal()
	if err != nil {
		return false // without a terminal there is no keyboard
	}
	defer tty.Close()
	return tty.foreground() == unix.Getpgrp()
}

// A terminal is the controlling terminal of the process.
type terminal struct{ *os.File }

func openTerminal() (terminal, error) {
	f, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	return terminal{f}, err
}

// foreground returns the foreground process group, or 0 on error.
func (t terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// shellStatus returns the status that a shell would return for an error.
func shellStatus(err error) int {
	switch {
	case errors.Is(err, ErrNotFound):
		return StatusNotFound
	case errors.Is(err, ErrNotExecutable) || errors.Is(err, ErrUnsuitable):
		return StatusNotExecutable
	}
	return StatusFailed
}
