package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/attach"
	"softroce/internal/netsim"
	"softroce/internal/network"
	"softroce/internal/nicspec"
	"softroce/wire/fault"
)

// Config is the configuration of a daemon. The zero value of a field means its default, which Start
// fills in.
type Config struct {
	NICs   []nicspec.NIC // default: nicspec.Defaults, or one for each NIC of Fabric
	Fabric string        // file of the topology of the fabric, as netsim.LoadTopology reads it; default: one switch without queues

	Socket      string        // path of the socket for clients; default: that of control.SocketPath
	SocketMode  os.FileMode   // permissions of the socket; default attach.DefaultMode
	SocketGroup string        // group of the socket, by name or number; default: the daemon's
	Limits      attach.Limits // per client

	Metrics string // address of the HTTP server for metrics, HOST:PORT; default: none
	Web     string // address of the live page, which package web serves, HOST:PORT; default: none
	Capture string // what to record from the start, and where: see ParseCapture; default: nothing
	Fault   string // file that holds a fault program, or "-"; default: none

	// CaptureBlocking makes the NICs wait if the file of Capture is slow. Otherwise the capture
	// loses packets.
	CaptureBlocking bool

	// WhileUsed ends Daemon.Wait when the last client disconnects.
	WhileUsed bool

	Engines int           // threads over which the NICs are distributed; default: see chooseEngines
	Spin    time.Duration // how long an idle engine spins before it sleeps; default: the engine's; negative: never

	topology *network.Topology // of Fabric; nil: none
}

// MaxEngines bounds Engines: more threads than cores only compete for them.
const MaxEngines = 64

// DefaultHTTPHost is the address for --metrics :PORT and --web :PORT. They show process names, so
// they are exposed to other hosts only if the configuration names an address.
const DefaultHTTPHost = "127.0.0.1"

// Validate checks what can be checked without opening anything, and fills in the defaults.
func (c *Config) Validate() error {
	if err := c.loadFabric(); err != nil {
		return err
	}
	if len(c.NICs) == 0 {
		c.NICs = nicspec.Defaults()
	}
	names := map[string]bool{}
	for _, n := range c.NICs {
		if names[n.Name] {
			return fmt.Errorf("NIC %s is configured twice: names must be unique", n.Name)
		}
		names[n.Name] = true
	}
	if err := c.checkAddresses(); err != nil {
		return err
	}
	if err := c.checkEngines(); err != nil {
		return err
	}
	c.chooseEngines(runtime.NumCPU())
	if c.Engines == 0 {
		c.Engines = 1
	}
	if c.Engines < 0 || c.Engines > MaxEngines {
		return fmt.Errorf("engines %d: want 1 to %d", c.Engines, MaxEngines)
	}
	if c.SocketMode&^0o777 != 0 {
		return fmt.Errorf("socket mode %#o: want permission bits only, such as 0660", c.SocketMode)
	}
	if c.Capture != "" {
		o, err := ParseCapture(c.Capture)
		if err != nil {
			return err
		}
		if err := c.checkNIC(o.Device); err != nil {
			return fmt.Errorf("capture %s: device %s: %w", c.Capture, o.Device, err)
		}
	}
	var err error
	if c.Metrics, err = completeAddress("metrics", c.Metrics); err != nil {
		return err
	}
	c.Web, err = completeAddress("web", c.Web)
	return err
}

// checkEngines rejects engines=N of a NIC whose link does not have a part for each.
func (c *Config) checkEngines() error {
	for _, n := range c.NICs {
		if n.Engines <= 1 {
			continue
		}
		if err := c.canShare(n); err != nil {
			return fmt.Errorf("NIC %s: engines=%d: %w", n.Name, n.Engines, err)
		}
	}
	return nil
}

// canShare returns an error if several engines cannot drive a NIC.
func (c *Config) canShare(n nicspec.NIC) error {
	if n.Kind == nicspec.Fabric && c.topology != nil {
		return errors.New("a NIC on a fabric with a network of switches has one engine")
	}
	return n.CanShare()
}

// Engines of a NIC by default: one for every fourth processor, since programs need the others.
const (
	processorsOfEngine = 4
	maxDefaultEngines  = 4
)

// chooseEngines sets the engines of the NICs that do not say how many, unless the NICs are to be
// distributed over Engines.
func (c *Config) chooseEngines(processors int) {
	if c.Engines != 0 {
		return
	}
	c.NICs = slices.Clone(c.NICs) // the caller's
	for i := range c.NICs {
		n := &c.NICs[i]
		if n.Engines == 0 && c.canShare(*n) == nil {
			n.Engines = max(1, min(maxDefaultEngines, processors/processorsOfEngine))
		}
	}
}

// enginesOfNIC returns how many engines drive the NIC that has the most.
func (c *Config) enginesOfNIC() int {
	most := 1
	for _, n := range c.NICs {
		most = max(most, n.Engines)
	}
	return most
}

// maxDefaultNICs is for how many NICs of a topology there are default addresses.
const maxDefaultNICs = 254

// loadFabric reads the topology of the fabric, and adds its NICs if none are configured. Those
// without congestion control of their own have that of the topology.
func (c *Config) loadFabric() error {
	if c.Fabric == "" {
		return nil
	}
	t, err := netsim.LoadTopology(c.Fabric)
	if err != nil {
		return err
	}
	c.topology = &t.Network
	if len(c.NICs) == 0 {
		if err := c.addNICs(); err != nil {
			return fmt.Errorf("%s: %w", c.Fabric, err)
		}
	}
	found := false
	for i := range c.NICs {
		if n := &c.NICs[i]; n.Kind == nicspec.Fabric {
			found = true
			n.Congestion = cmp.Or(n.Congestion, t.NIC.Congestion)
		}
	}
	if !found {
		return fmt.Errorf("%s: no NIC is on a fabric", c.Fabric)
	}
	return nil
}

// addNICs adds a NIC for each of the topology.
func (c *Config) addNICs() error {
	for _, k := range c.topology.Nodes {
		if k.Switch {
			continue
		}
		i := len(c.NICs) + 1
		if i > maxDefaultNICs {
			return fmt.Errorf("more than %d NICs have no default addresses: configure them as NAME=fabric:ADDR", maxDefaultNICs)
		}
		n, err := nicspec.Parse(fmt.Sprintf("%s=fabric:192.0.2.%d/24,2001:db8::%x/64", k.Name, i, i))
		if err != nil {
			return err
		}
		c.NICs = append(c.NICs, n)
	}
	return nil
}

// checkAddresses rejects an address that two NICs on the fabric have: it would lead to one of them.
func (c *Config) checkAddresses() error {
	type address struct {
		netip.Addr
		vlan uint16
	}
	owners := map[address]string{}
	for _, n := range c.NICs {
		if n.Kind != nicspec.Fabric {
			continue
		}
		var addresses []address
		for _, a := range n.Addrs {
			addresses = append(addresses, address{a.Addr(), 0})
		}
		for _, a := range n.VLANs {
			addresses = append(addresses, address{a.Addr(), a.VLAN})
		}
		for _, a := range addresses {
			if owner, taken := owners[a]; taken && owner != n.Name {
				return fmt.Errorf("NIC %s: address %v is that of NIC %s on the fabric", n.Name, a.Addr, owner)
			}
			owners[a] = n.Name
		}
	}
	return nil
}

// checkFaults rejects rules for a NIC that does not exist: they would never match a packet.
func (c *Config) checkFaults(p *fault.Program) error {
	if p == nil {
		return nil
	}
	var names []string
	for _, n := range c.NICs {
		names = append(names, n.Name)
	}
	if err := p.CheckNICs(names); err != nil {
		return fmt.Errorf("%s: %w", c.Fault, err)
	}
	return nil
}

// checkNIC returns an error if the daemon has no NIC of a name that is not empty.
func (c *Config) checkNIC(name string) error {
	var names []string
	for _, n := range c.NICs {
		if names = append(names, n.Name); n.Name == name {
			return nil
		}
	}
	if name == "" {
		return nil
	}
	return fmt.Errorf("no such NIC (have: %s)", strings.Join(names, ", "))
}

// completeAddress checks HOST:PORT, and fills in the host.
func completeAddress(what, addr string) (string, error) {
	if addr == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%s address %q: want HOST:PORT, such as 127.0.0.1:9091", what, addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%s port %q: want a number from 0 to 65535", what, port)
	}
	if host == "" {
		addr = net.JoinHostPort(DefaultHTTPHost, port)
	}
	return addr, nil
}

// SpinOf converts a duration given by the user, where 0 means never, to the value of Config.Spin.
func SpinOf(d time.Duration) (time.Duration, error) {
	switch {
	case d < 0:
		return 0, fmt.Errorf("spin %v: want 0 or more", d)
	case d == 0:
		return -1, nil
	}
	return d, nil
}
