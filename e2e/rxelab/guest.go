package rxelab

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// ErrTimeout is returned for a command that did not end in time.
var ErrTimeout = errors.New("command in the guest took too long")

// A Guest is a virtual machine with an RDMA device rxe0 on its interface eth0.
type Guest struct {
	Addr4, Addr6 netip.Addr     // addresses of eth0
	Host         netip.Addr     // address at which EmuNamespace reaches its TCP servers
	Dgram        netip.AddrPort // in a Dgram lab: the UDP address at which eth0 receives frames
	DgramPeer    netip.AddrPort // and the one to which it sends them

	lab     *Lab
	ctl     netip.AddrPort
	started atomic.Int64 // number of commands
}

// GIDIndex returns the index of the guest's GID for an address family in the GID table of rxe0.
func GIDIndex(ipv6 bool) int {
	if ipv6 {
		return 2
	}
	return 1
}

func newGuest(l *Lab, n int, vars map[string]string) (*Guest, error) {
	g := &Guest{lab: l}
	vm := fmt.Sprintf("RXELAB_VM%d_", n)
	var err error
	addr := func(key string) netip.Addr {
		a, e := netip.ParseAddr(vars[vm+key])
		err = errors.Join(err, e)
		return a
	}
	port := func(key string) netip.AddrPort {
		a, e := netip.ParseAddrPort(vars[vm+key])
		err = errors.Join(err, e)
		return a
	}
	g.Addr4, g.Addr6, g.ctl = addr("IP"), addr("IP6"), port("CTL")
	g.Host = g.Addr4
	if l.dgram {
		g.Host, g.Dgram, g.DgramPeer = addr("OOB_IP"), port("DGRAM"), port("DGRAM_PEER")
	}
	if err != nil {
		return nil, fmt.Errorf("lab env: %w", err)
	}
	return g, nil
}

// Run runs a shell command in the guest and returns its stdout and stderr. An exit status other
// than 0 is an *ExitError. After limit the error is ErrTimeout.
func (g *Guest) Run(ctx context.Context, limit time.Duration, command string) (string, error) {
	p, err := g.Start(ctx, limit, command)
	if err != nil {
		return "", err
	}
	return p.Wait()
}

// An ExitError reports a command in the guest that ended with a status other than 0.
type ExitError struct {
	Status int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit status %d in the guest: %s", e.Status, e.Output)
}

// A Process is a command that runs in a guest.
type Process struct {
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
	err error
}

// Start starts a shell command in the guest. It is killed after limit, or when ctx ends.
func (g *Guest) Start(ctx context.Context, limit time.Duration, command string) (*Process, error) {
	// The command is the leader of a process group.
	file := fmt.Sprintf("/tmp/command-%d", g.started.Add(1))
	p, err := g.start(ctx, limit, fmt.Sprintf("echo $$ >%s\n%s", file, command))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		if k, err := g.start(context.WithoutCancel(ctx), killLimit, fmt.Sprintf("kill -KILL -$(cat %s)", file)); err == nil {
			k.Wait()
		}
	})
	go func() {
		<-p.done
		stop()
	}()
	return p, nil
}

const killLimit = 10 * time.Second

func (g *Guest) start(ctx context.Context, limit time.Duration, command string) (*Process, error) {
	c, err := Dial(ctx, g.lab.name, g.ctl)
	if err != nil {
		return nil, err
	}
	seconds := int(max(limit.Round(time.Second)/time.Second, 1))
	_, err = fmt.Fprintf(c, "exec %d %s\n", seconds, base64.StdEncoding.EncodeToString([]byte(command)))
	if err != nil {
		c.Close()
		return nil, err
	}
	// The guest enforces the limit by its own clock, which may be slow. This deadline is for a
	// guest that hangs.
	c.SetReadDeadline(time.Now().Add(limit + 15*time.Second))
	p := &Process{done: make(chan struct{})}
	go p.read(c)
	return p, nil
}

// read collects the output, which ends with NUL "rc=N" LF.
func (p *Process) read(c net.Conn) {
	defer close(p.done)
	defer c.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Read(buf)
		p.mu.Lock()
		p.out.Write(buf[:n])
		if err != nil {
			p.finish(err)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

func (p *Process) finish(readErr error) {
	all := p.out.Bytes()
	at := bytes.LastIndexByte(all, 0)
	if at < 0 {
		p.err = fmt.Errorf("guest did not report an exit status: %w", readErr)
		return
	}
	status, err := strconv.Atoi(string(bytes.TrimSpace(bytes.TrimPrefix(all[at+1:], []byte("rc=")))))
	p.out.Truncate(at)
	switch {
	case err != nil:
		p.err = fmt.Errorf("guest's exit status: %w", err)
	case status == 124:
		p.err = ErrTimeout
	case status != 0:
		p.err = &ExitError{status, p.out.String()}
	}
}

// Output returns the output so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns its output and error.
func (p *Process) Wait() (string, error) {
	<-p.done
	return p.Output(), p.err
}

// Put copies a file into the guest.
func (g *Guest) Put(ctx context.Context, src, dst string) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	info, err := os.Stat(src)
	if err != nil {
		return err
	}
	c, err := Dial(ctx, g.lab.name, g.ctl)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	fmt.Fprintf(c, "put %o %d %s\n", info.Mode().Perm(), len(data), base64.StdEncoding.EncodeToString([]byte(dst)))
	if _, err := c.Write(data); err != nil {
		return err
	}
	answer := make([]byte, 16)
	if n, _ := c.Read(answer); string(answer[:n]) != "ok\n" {
		return fmt.Errorf("put %s: the guest did not accept the file", dst)
	}
	return nil
}

// listenLimit is how long the guest waits for a server.
const listenLimit = time.Minute

// WaitListen returns when a TCP server of the guest listens on port, or when ctx ends.
func (g *Guest) WaitListen(ctx context.Context, port int) error {
	// The server would accept a test connection as its client's, so this reads the socket tables:
	// columns 2 and 4 are the local address and the state. The loop needs only shell builtins,
	// because starting a program in a guest is slow.
	p, err := g.Start(ctx, listenLimit, fmt.Sprintf(`while :; do
		for t in /proc/net/tcp /proc/net/tcp6; do
			while read -r _ at _ state _; do [ "${at##*:}$state" != %04X0A ] || exit 0; done <$t
		done
		sleep 0.02
	done`, port))
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		_, err := p.Wait()
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dial connects to a TCP server of the guest. It retries until the server listens or ctx ends.
func (g *Guest) Dial(ctx context.Context, port int) (net.Conn, error) {
	var c net.Conn
	var last error
	err := waitFor(ctx, func() bool {
		c, last = Dial(ctx, g.lab.EmuNamespace(), netip.AddrPortFrom(g.Host, uint16(port)))
		return last == nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return c, nil
}
