package daemon

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/attach"
	"softroce/internal/nicspec"
	"softroce/wire/fault"
)

// Config is all that a daemon can be told. The zero value of a field means its
// default; Start fills the defaults in.
type Config struct {
	NICs []nicspec.NIC // default: nicspec.Defaults

	Socket      string        // path of the clients' socket; default: control.SocketPath's
	SocketMode  os.FileMode   // who may attach; default attach.DefaultMode
	SocketGroup string        // the socket's group, by name or number; default: the daemon's
	Limits      attach.Limits // of each client

	Metrics string // address of the metrics' HTTP server, HOST:PORT; default: none
	Capture string // pcapng file for every packet from the start; default: none
	Fault   string // file with a fault program; default: none

	// WhileUsed ends the daemon's use with its last client's: see Daemon.Unused.
	WhileUsed bool

	Engines int           // threads that share the NICs; default 1
	Spin    time.Duration // how long an idle engine spins before it sleeps; default: the engine's own; negative: not at all
}

// maxEngines bounds Engines: threads beyond any machine's cores only wait for each other.
const maxEngines = 64

// DefaultMetricsHost is where --metrics :PORT listens: metrics name processes, so
// they leave the machine only if asked.
const DefaultMetricsHost = "127.0.0.1"

// Validate checks what can be checked without opening anything, and fills the defaults in.
func (c *Config) Validate() error {
	if len(c.NICs) == 0 {
		c.NICs = nicspec.Defaults()
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
	if c.SocketMode&^0o777 != 0 {
		return fmt.Errorf("socket mode %#o: want permission bits only, such as 0660", c.SocketMode)
	}
	return c.checkMetrics()
}

// checkFaults looks for rules that no packet would ever meet, because their NIC is not there.
func (c *Config) checkFaults(p *fault.Program) error {
	if p == nil {
		return nil
	}
	var names []string
	for _, n := range c.NICs {
		names = append(names, n.Name)
	}
	for _, r := range p.Rules {
		if r.NIC != "" && !slices.Contains(names, r.NIC) {
			return fmt.Errorf("%s: a rule is for NIC %s: the daemon has %s", c.Fault, r.NIC, strings.Join(names, ", "))
		}
	}
	return nil
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

// SpinOf returns what Config.Spin is for a duration that somebody asked for, where 0 means
// not at all.
func SpinOf(d time.Duration) (time.Duration, error) {
	switch {
	case d < 0:
		return 0, fmt.Errorf("spin %v: want 0 or more", d)
	case d == 0:
		return -1, nil
	}
	return d, nil
}
