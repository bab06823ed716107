package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"
)

// Config is all that a daemon can be told. The zero value of a field means its
// default; Start fills the defaults in.
type Config struct {
	NICs []NIC // default: DefaultNICs

	Socket      string      // path of the clients' socket; default: DefaultSocket
	SocketMode  os.FileMode // who may attach; default 0660
	SocketGroup string      // the socket's group, by name or number; default: the daemon's
	Limits      Limits      // of each client

	Metrics string // address of the metrics' HTTP server, HOST:PORT; default: none
	Capture string // pcapng file for every packet from the start; default: none
	Fault   string // file with a fault program; default: none

	Engines int           // threads that share the NICs; default 1
	Spin    time.Duration // how long an idle engine spins before it sleeps; default: the engine's own; negative: not at all
}

// Limits bound what one client may hold, so that it cannot starve the others.
// 0 means the default.
type Limits struct {
	PDs        int
	CQs        int
	QPs        int
	MRs        int
	AHs        int
	Registered uint64 // bytes of registered memory
	Rings      uint64 // bytes of rings
}

// DefaultSocketMode lets the socket's owner and group attach.
const DefaultSocketMode = 0o660

// maxEngines bounds Engines: threads beyond any machine's cores only wait for each other.
const maxEngines = 64

// DefaultMetricsHost is where --metrics :PORT listens: metrics name processes, so
// they leave the machine only if asked.
const DefaultMetricsHost = "127.0.0.1"

// Validate checks what can be checked without opening anything, and fills the defaults in.
func (c *Config) Validate() error {
	if len(c.NICs) == 0 {
		c.NICs = DefaultNICs()
	}
	names := map[string]bool{}
	for _, n := range c.NICs {
		if names[n.Name] {
			return fmt.Errorf("NIC %s is there twice: each needs a name of its own", n.Name)
		}
		names[n.Name] = true
	}
	if c.Engines == 0 {
		c.Engines = 1
	}
	if c.Engines < 0 || c.Engines > maxEngines {
		return fmt.Errorf("engines %d: want 1 to %d", c.Engines, maxEngines)
	}
	if c.SocketMode == 0 {
		c.SocketMode = DefaultSocketMode
	}
	if c.SocketMode&^0o777 != 0 {
		return fmt.Errorf("socket mode %#o: want permission bits only, such as 0660", c.SocketMode)
	}
	if _, err := c.group(); err != nil {
		return err
	}
	return c.checkMetrics()
}

func (c *Config) checkMetrics() error {
	if c.Metrics == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Metrics)
	if err != nil {
		return fmt.Errorf("metrics address %q: want HOST:PORT, such as 127.0.0.1:9091", c.Metrics)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("metrics port %q: want a number from 0 to 65535", port)
	}
	if host == "" {
		c.Metrics = net.JoinHostPort(DefaultMetricsHost, port)
	}
	return nil
}

// group returns the number of SocketGroup, -1 where none was asked for.
func (c *Config) group() (int, error) {
	if c.SocketGroup == "" {
		return -1, nil
	}
	if g, err := user.LookupGroup(c.SocketGroup); err == nil {
		return strconv.Atoi(g.Gid)
	}
	gid, err := strconv.ParseUint(c.SocketGroup, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("socket group %q: no such group", c.SocketGroup)
	}
	return int(gid), nil
}

// prepareSocket makes the directory of the socket and removes what a daemon that was killed
// left there. A socket that somebody listens on is left alone.
func prepareSocket(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("socket %s: %w (choose another path with --socket)", path, err)
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, err)
	case st.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("socket %s: there is a file that is no socket", path)
	case listening(path):
		return fmt.Errorf("socket %s: another daemon listens there", path)
	}
	return os.Remove(path)
}

// listening reports whether somebody accepts connections at path, of whatever type.
func listening(path string) bool {
	for _, network := range []string{"unixpacket", "unix"} {
		c, err := net.Dial(network, path)
		if err == nil {
			c.Close()
			return true
		}
	}
	return false
}
