package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// ErrNoProgram is returned if a script needs the verbs program of a live NIC and none is
// configured.
var ErrNoProgram = errors.New("no verbs program: specify one with --program or in the script")

// replyTimeout bounds the time in which a verbs program replies to a line.
const replyTimeout = 20 * time.Second

// A programConn is a connection to a verbs program, which replies to each line with a line.
type programConn struct {
	conn   io.ReadWriteCloser
	in     *bufio.Reader
	closer func() error

	broken bool // a line got no reply
}

// openProgram starts the command and connects to its standard input and output, or, if the command
// is tcp:HOST:PORT, connects to that address.
func openProgram(command []string) (*programConn, error) {
	if len(command) == 0 {
		return nil, ErrNoProgram
	}
	if addr, ok := strings.CutPrefix(command[0], "tcp:"); ok {
		c, err := net.DialTimeout("tcp", addr, replyTimeout)
		if err != nil {
			return nil, err
		}
		return &programConn{conn: c, in: bufio.NewReader(c), closer: c.Close}, nil
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pipe := struct {
		io.Reader
		io.WriteCloser
	}{in, out}
	return &programConn{conn: pipe, in: bufio.NewReader(in), closer: func() error {
		out.Close() // the program exits at the end of its input
		late := time.AfterFunc(replyTimeout, func() { cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	}}, nil
}

// The replies of a program whose device or library lacks a capability.
const (
	noXRC         = "error no XRC\n"
	noAtomicWrite = "error no ATOMIC WRITE\n"
	noFlush       = "error no FLUSH\n"
)

// request sends a line and returns the values of the reply, or the error that the program reported.
func (l *programConn) request(line string) (reply, error) {
	if c, ok := l.conn.(net.Conn); ok {
		c.SetDeadline(time.Now().Add(replyTimeout))
	}
	if _, err := io.WriteString(l.conn, line+"\n"); err != nil {
		l.broken = true
		return nil, fmt.Errorf("verbs program: %w", err)
	}
	s, err := l.in.ReadString('\n')
	if err != nil {
		l.broken = true
		return nil, fmt.Errorf("verbs program, request %q: %w", line, err)
	}
	words := strings.Fields(s)
	if len(words) > 0 && words[0] == "ok" {
		return words[1:], nil
	}
	err = map[string]error{noXRC: ErrNoXRC, noAtomicWrite: ErrNoAtomicWrite, noFlush: ErrNoFlush}[s]
	return nil, errors.Join(err, fmt.Errorf("verbs program, request %q: %s", line, strings.TrimSpace(s)))
}

func (l *programConn) close() error { return l.closer() }
