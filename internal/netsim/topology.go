package netsim

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/network"
	"softroce/internal/suggest"
	"softroce/internal/yamlfile"
	"softroce/transport/congestion"
)

// A Topology is a network and the NICs at it.
type Topology struct {
	Network network.Topology
	NIC     NICOptions
}

// NICOptions are the properties of all NICs.
type NICOptions struct {
	MTU        int   // path MTU
	Timeout    uint8 // local ACK timeout, as ibv_modify_qp has it
	Congestion *congestion.Params
}

// topologyFile is the layout of a topology file.
type topologyFile struct {
	Rate   rateValue `yaml:"rate"`
	Delay  timeValue `yaml:"delay"`
	Switch struct {
		Buffer  bytesValue   `yaml:"buffer"`
		Queue   bytesValue   `yaml:"queue"`
		ECN     *ecnFile     `yaml:"ecn"`
		PFC     *pfcFile     `yaml:"pfc"`
		Weights weightsValue `yaml:"weights"`
	} `yaml:"switch"`
	NIC struct {
		Congestion algorithmValue `yaml:"congestion"`
		Parameters parameters     `yaml:"parameters"`
		MTU        mtuValue       `yaml:"mtu"`
		Timeout    timeoutValue   `yaml:"timeout"`
	} `yaml:"nic"`
	Star *struct {
		NICs countValue `yaml:"nics"`
	} `yaml:"star"`
	LeafSpine *struct {
		Leaves countValue `yaml:"leaves"`
		Spines countValue `yaml:"spines"`
		NICs   countValue `yaml:"nics"`
		Uplink rateValue  `yaml:"uplink"`
	} `yaml:"leaf_spine"`
	Switches []nameValue `yaml:"switches"`
	NICs     []nameValue `yaml:"nics"`
	Links    []linkFile  `yaml:"links"`
}

type ecnFile struct {
	Kmin bytesValue `yaml:"kmin"`
	Kmax bytesValue `yaml:"kmax"`
	Pmax shareValue `yaml:"pmax"`
	Rate rateValue  `yaml:"rate"`
}

type pfcFile struct {
	Priorities []priorityValue `yaml:"priorities"`
	XOff       bytesValue      `yaml:"xoff"`
	XOn        bytesValue      `yaml:"xon"`
	Headroom   bytesValue      `yaml:"headroom"`
}

type linkFile struct {
	From  nameValue `yaml:"from"`
	To    nameValue `yaml:"to"`
	Rate  rateValue `yaml:"rate"`
	Delay timeValue `yaml:"delay"`

	line int
}

// UnmarshalYAML notes the line of the link.
func (l *linkFile) UnmarshalYAML(n ast.Node) (err error) {
	type plain linkFile // without this method
	l.line, err = yamlfile.Map(n, (*plain)(l))
	return err
}

// UnmarshalYAML checks the thresholds, so that what is wrong with them has their line.
func (f *ecnFile) UnmarshalYAML(n ast.Node) error {
	type plain ecnFile
	line, err := yamlfile.Map(n, (*plain)(f))
	return cmp.Or(err, atLine(line, f.ecn().Check()))
}

// UnmarshalYAML checks the thresholds.
func (f *pfcFile) UnmarshalYAML(n ast.Node) error {
	type plain pfcFile
	line, err := yamlfile.Map(n, (*plain)(f))
	return cmp.Or(err, atLine(line, f.pfc().Check()))
}

// atLine returns an error with a line, or nil if there is none.
func atLine(line int, err error) error {
	if err == nil {
		return nil
	}
	return &yamlfile.LineError{Line: line, Err: err}
}

func (f *ecnFile) ecn() *network.ECN {
	return &network.ECN{Kmin: int(f.Kmin), Kmax: int(f.Kmax), Pmax: float64(f.Pmax), Rate: int64(f.Rate)}
}

func (f *pfcFile) pfc() *network.PFC {
	p := &network.PFC{XOff: int(f.XOff), XOn: int(f.XOn), Headroom: int(f.Headroom)}
	p.Priorities[0] = f.Priorities == nil
	for _, i := range f.Priorities {
		p.Priorities[i] = true
	}
	return p
}

// Limits of a simulation.
const (
	maxFile     = 16 << 20 // bytes
	maxNICs     = 4096
	maxSwitches = 1024 // each has the paths to all others
	maxLinks    = 1 << 16
	maxCount    = 1 << 20
)

// Defaults of a topology.
const (
	defaultRate   = 10e9
	defaultDelay  = 1000 // ns
	defaultBuffer = 12e6
	defaultMTU    = 4096
	defaultACK    = 14 // 67 ms, as most programs use
)

// LoadTopology reads a topology file. An error names the file and what is wrong.
func LoadTopology(path string) (*Topology, error) {
	var f topologyFile
	if err := yamlfile.Load(path, maxFile, &f); err != nil {
		return nil, err
	}
	f.Rate, f.Delay = cmp.Or(f.Rate, defaultRate), cmp.Or(f.Delay, defaultDelay)
	f.Switch.Buffer = cmp.Or(f.Switch.Buffer, defaultBuffer)
	f.NIC.MTU, f.NIC.Timeout = cmp.Or(f.NIC.MTU, defaultMTU), cmp.Or(f.NIC.Timeout, defaultACK)
	t, err := f.topology()
	if err != nil {
		return nil, yamlfile.Locate(path, err)
	}
	return t, nil
}

func (f *topologyFile) topology() (*Topology, error) {
	t := &Topology{}
	f.setSwitch(&t.Network.Switch)
	if err := f.setNIC(&t.NIC); err != nil {
		return nil, err
	}
	if err := f.setShape(&t.Network); err != nil {
		return nil, err
	}
	nics := 0
	for _, d := range t.Network.Nodes {
		if !d.Switch {
			nics++
		}
	}
	switches := len(t.Network.Nodes) - nics
	switch {
	case nics < 2 || nics > maxNICs:
		return nil, fmt.Errorf("%d NICs: want 2 to %d", nics, maxNICs)
	case switches > maxSwitches:
		return nil, fmt.Errorf("%d switches: want up to %d", switches, maxSwitches)
	case len(t.Network.Links) > maxLinks:
		return nil, fmt.Errorf("%d links: want up to %d", len(t.Network.Links), maxLinks)
	}
	if err := t.Network.Check(); err != nil {
		var l *network.LinkError
		if errors.As(err, &l) && l.Link < len(f.Links) {
			err = atLine(f.Links[l.Link].line, err)
		}
		return nil, err
	}
	_, err := network.New(&t.Network, 1)
	return t, err
}

func (f *topologyFile) setSwitch(c *network.SwitchConfig) {
	s := &f.Switch
	c.Buffer, c.Queue = int(s.Buffer), int(s.Queue)
	if c.Queue == 0 {
		c.Queue = c.Buffer
	}
	if s.ECN != nil {
		c.ECN = s.ECN.ecn()
	}
	if s.PFC != nil {
		c.PFC = s.PFC.pfc()
	}
	c.Weights = s.Weights
}

func (f *topologyFile) setNIC(o *NICOptions) error {
	o.MTU = int(f.NIC.MTU)
	o.Timeout = uint8(f.NIC.Timeout)
	p := congestion.Defaults()
	o.Congestion = &p
	p.Algorithm = congestion.Algorithm(f.NIC.Congestion)
	for _, v := range f.NIC.Parameters {
		if err := p.SetText(v[0], v[1]); err != nil {
			return err
		}
	}
	return nil
}

func (f *topologyFile) setShape(t *network.Topology) error {
	shapes := 0
	for _, has := range []bool{f.Star != nil, f.LeafSpine != nil, len(f.Links) > 0} {
		if has {
			shapes++
		}
	}
	if shapes != 1 || len(f.Links) == 0 && len(f.Switches)+len(f.NICs) > 0 {
		return errors.New("want one of star, leaf_spine, and switches with nics and links")
	}
	switch {
	case f.Star != nil:
		return f.star(t)
	case f.LeafSpine != nil:
		return f.leafSpine(t)
	}
	return f.graph(t)
}

func (f *topologyFile) star(t *network.Topology) error {
	if f.Star.NICs > maxNICs {
		return fmt.Errorf("star: %d NICs: want 2 to %d", f.Star.NICs, maxNICs)
	}
	s := t.AddNode("switch", true)
	for i := range int(f.Star.NICs) {
		t.Links = append(t.Links, f.link(t.AddNode("n"+strconv.Itoa(i), false), s, 0, 0))
	}
	return nil
}

func (f *topologyFile) leafSpine(t *network.Topology) error {
	l := f.LeafSpine
	leaves, spines, nics := int(l.Leaves), int(l.Spines), int(l.NICs)
	if leaves == 0 || spines == 0 || nics == 0 {
		return errors.New("leaf_spine: want leaves, spines, and nics of each leaf")
	}
	if leaves > maxNICs || nics > maxNICs || leaves*nics > maxNICs || leaves*spines > maxLinks {
		return fmt.Errorf("leaf_spine: want up to %d NICs and %d links", maxNICs, maxLinks)
	}
	var top []int
	for i := range spines {
		top = append(top, t.AddNode("spine"+strconv.Itoa(i), true))
	}
	for i := range leaves {
		leaf := t.AddNode("leaf"+strconv.Itoa(i), true)
		for _, s := range top {
			t.Links = append(t.Links, f.link(leaf, s, l.Uplink, 0))
		}
		for j := range nics {
			t.Links = append(t.Links, f.link(t.AddNode("n"+strconv.Itoa(i*nics+j), false), leaf, 0, 0))
		}
	}
	return nil
}

func (f *topologyFile) graph(t *network.Topology) error {
	nodes := map[string]int{}
	var names []string
	for _, l := range []struct {
		names []nameValue
		isSw  bool
	}{{f.Switches, true}, {f.NICs, false}} {
		for _, name := range l.names {
			nodes[string(name)] = t.AddNode(string(name), l.isSw)
			names = append(names, string(name))
		}
	}
	for _, l := range f.Links {
		var ends [2]int
		for i, name := range []nameValue{l.From, l.To} {
			at, ok := nodes[string(name)]
			if !ok {
				return atLine(l.line, fmt.Errorf("links: no switch or NIC %q%s", name, suggest.Word(string(name), names)))
			}
			ends[i] = at
		}
		t.Links = append(t.Links, f.link(ends[0], ends[1], l.Rate, l.Delay))
	}
	return nil
}

func (f *topologyFile) link(a, b int, rate rateValue, delay timeValue) network.Link {
	return network.Link{A: a, B: b, Rate: int64(cmp.Or(rate, f.Rate)), Delay: int64(cmp.Or(delay, f.Delay))}
}
