package persona

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/ib"
	"softroce/internal/suggest"
	"softroce/internal/yamlfile"
	"softroce/nic"
)

// A Persona is a model of NIC.
type Persona struct {
	Identity nic.Identity
	Limits   nic.Limits
}

//go:embed presets/*.yaml
var presets embed.FS

// Names returns the names of the presets.
func Names() (names []string) {
	files, err := presets.ReadDir("presets")
	if err != nil {
		panic(err) // the directory is embedded
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// maxFile is the size in bytes of the largest file that Text reads.
const maxFile = 1 << 20

// Text returns the YAML of a preset or, if name contains a slash or ends in .yaml or .yml, of a
// file.
func Text(name string) ([]byte, error) {
	if IsFile(name) {
		return readFile(name)
	}
	text, err := presets.ReadFile("presets/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("persona %q is not a preset%s; a file is named with a slash or ends in .yaml", name, suggest.Word(name, Names()))
	}
	return text, nil
}

// IsFile reports whether a persona of this name is a file, and not a preset.
func IsFile(name string) bool {
	return strings.Contains(name, "/") || slices.Contains([]string{".yaml", ".yml"}, path.Ext(name))
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("persona: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("persona: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("persona %s: larger than %d bytes", name, maxFile)
	}
	return text, nil
}

// Load returns the persona of a preset or a file.
func Load(name string) (*Persona, error) {
	text, err := Text(name)
	if err != nil {
		return nil, err
	}
	p, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("persona %s: %w", name, err)
	}
	return p, nil
}

// file is the layout of a persona.
type file struct {
	Sources      []string         `yaml:"sources"`
	Model        string           `yaml:"model"`
	VendorID     id32             `yaml:"vendor_id"`
	VendorPartID id32             `yaml:"vendor_part_id"`
	HWVer        id32             `yaml:"hw_ver"`
	FWVer        string           `yaml:"fw_ver"`
	HCAType      string           `yaml:"hca_type"`
	BoardID      string           `yaml:"board_id"`
	NodeDesc     string           `yaml:"node_desc"`
	ActiveSpeed  string           `yaml:"active_speed"`
	ActiveWidth  count            `yaml:"active_width"`
	Limits       map[string]limit `yaml:"limits"`
	Hide         []string         `yaml:"hide"`
	VendorErr    map[string]id32  `yaml:"vendor_err"`
	HWCounters   nic.CounterSet   `yaml:"hw_counters"`
	RoCEv1GIDs   *bool            `yaml:"roce_v1_gids"`
	Ports        *count           `yaml:"ports"`
	PCI          *pci             `yaml:"pci"`
}

type pci struct {
	Vendor          id16   `yaml:"vendor"`
	Device          id16   `yaml:"device"`
	SubsystemVendor id16   `yaml:"subsystem_vendor"`
	SubsystemDevice id16   `yaml:"subsystem_device"`
	Class           id32   `yaml:"class"`
	Driver          string `yaml:"driver"`
	NUMANode        *count `yaml:"numa_node"`
	LocalCPUs       string `yaml:"local_cpulist"`
	LinkSpeed       string `yaml:"link_speed"`
	LinkWidth       count  `yaml:"link_width"`
}

// Numbers of a persona. The YAML library would take 3.5 for 3.
type (
	count int
	id16  uint16
	id32  uint32
	limit uint64
)

func (v *count) UnmarshalYAML(n ast.Node) error { return number(n, v, math.MinInt32, math.MaxInt32) }
func (v *id16) UnmarshalYAML(n ast.Node) error  { return number(n, v, 0, math.MaxUint16) }
func (v *id32) UnmarshalYAML(n ast.Node) error  { return number(n, v, 0, math.MaxUint32) }

func (v *limit) UnmarshalYAML(n ast.Node) error {
	return yamlfile.Scalar(n, v, func(s string) (limit, error) {
		u, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return 0, fmt.Errorf("%q: want a whole number from 1 to %d", s, uint64(math.MaxUint64))
		}
		return limit(u), nil
	})
}

func number[T ~int | ~uint16 | ~uint32](n ast.Node, into *T, least, most int64) error {
	return yamlfile.Scalar(n, into, func(s string) (T, error) {
		v, err := strconv.ParseInt(s, 0, 64)
		if err != nil || v < least || v > most {
			return 0, fmt.Errorf("%q: want a whole number from %d to %d", s, least, most)
		}
		return T(v), nil
	})
}

// Parse parses a persona. An error says what is wrong with it, and on which line if the YAML is.
func Parse(text []byte) (*Persona, error) {
	var f file
	if err := yamlfile.Decode(bytes.NewReader(text), &f); err != nil {
		return nil, err
	}
	p := &Persona{Identity: nic.Identity{
		VendorID: uint32(f.VendorID), VendorPartID: uint32(f.VendorPartID), HWVer: uint32(f.HWVer), FWVer: f.FWVer,
		HCAType: f.HCAType, BoardID: f.BoardID, NodeDesc: f.NodeDesc, RoCEv1GIDs: f.roceV1GIDs(),
	}}
	for _, err := range []error{
		f.checkTexts(), f.setPorts(&p.Identity), f.setSpeed(&p.Identity), f.setHidden(&p.Identity), f.setVendorErrs(&p.Identity), f.setCounters(&p.Identity), f.setLimits(&p.Limits), f.setPCI(&p.Identity),
	} {
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// roceV1GIDs returns the GIDs of RoCE v1 that the NIC has.
func (f *file) roceV1GIDs() nic.RoCEv1GIDs {
	switch {
	case f.RoCEv1GIDs == nil:
		return nic.RoCEv1GIDsBehind
	case *f.RoCEv1GIDs:
		return nic.RoCEv1GIDsBefore
	}
	return nic.NoRoCEv1GIDs
}

// Sizes of the fields of struct ibv_device_attr and of sysfs, without the NUL.
const (
	maxFWVer    = 63
	maxNodeDesc = 63
)

// checkTexts checks what is printed as it is.
func (f *file) checkTexts() error {
	for _, t := range []struct {
		key, text string
		max       int
	}{
		{"fw_ver", f.FWVer, maxFWVer}, {"hca_type", f.HCAType, maxNodeDesc}, {"board_id", f.BoardID, maxNodeDesc}, {"node_desc", f.NodeDesc, maxNodeDesc},
	} {
		if len(t.text) > t.max || strings.ContainsFunc(t.text, func(r rune) bool { return r < ' ' || r > '~' }) {
			return fmt.Errorf("%s %q: want at most %d printable ASCII characters", t.key, t.text, t.max)
		}
	}
	return nil
}

func (f *file) setPorts(i *nic.Identity) error {
	if f.Ports == nil {
		return nil
	}
	if i.Ports = int(*f.Ports); i.Ports != 1 && i.Ports != 2 {
		return fmt.Errorf("ports %d: want 1 or 2", i.Ports)
	}
	return nil
}

func (f *file) setSpeed(i *nic.Identity) error {
	if f.ActiveSpeed != "" {
		s, ok := ib.ParseSpeed(f.ActiveSpeed)
		if !ok {
			return fmt.Errorf("active_speed %q: want SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR or XDR, the speed of a lane", f.ActiveSpeed)
		}
		i.ActiveSpeed = s
	}
	if f.ActiveWidth != 0 {
		w, ok := ib.WidthOf(int(f.ActiveWidth))
		if !ok {
			return fmt.Errorf("active_width %d: want 1, 2, 4, 8 or 12 lanes", f.ActiveWidth)
		}
		i.ActiveWidth = w
	}
	return nil
}

// features are the names under hide of features.
var features = map[string]nic.Capability{
	"atomics": nic.CapAtomics, "atomic_write": nic.CapAtomicWrite, "device_memory": nic.CapDeviceMemory, "flush": nic.CapFlush,
	"local_invalidate": nic.CapLocalInvalidate, "memory_windows": nic.CapMemoryWindows, "memory_windows_2b": nic.CapMemoryWindows2B,
	"multicast": nic.CapMulticast, "on_demand_paging": nic.CapOnDemandPaging,
	"srq": nic.CapSRQ, "srq_resize": nic.CapSRQResize, "timestamps": nic.CapTimestamps, "xrc": nic.CapXRC,
}

// engineLimits returns the limits of the engine by the names of struct ibv_device_attr.
func engineLimits() map[string]uint64 {
	text, err := json.Marshal(nic.DefaultLimits)
	if err != nil {
		panic(err) // a struct of numbers
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		panic(err)
	}
	limits := map[string]uint64{}
	for key, v := range all {
		var n uint64
		if json.Unmarshal(v, &n) == nil {
			limits[key] = n
		}
	}
	return limits
}

func (f *file) setHidden(i *nic.Identity) error {
	known := slices.AppendSeq(slices.Collect(maps.Keys(features)), maps.Keys(engineLimits()))
	for _, name := range f.Hide {
		if !slices.Contains(known, name) {
			return fmt.Errorf("hide: %q is neither a feature nor a limit%s", name, suggest.Word(name, known))
		}
		i.Hidden |= features[name]
	}
	return nil
}

func (f *file) setVendorErrs(i *nic.Identity) error {
	for _, name := range slices.Sorted(maps.Keys(f.VendorErr)) {
		status, ok := ib.WCStatuses[name]
		if !ok || status == ib.WCSuccess {
			return fmt.Errorf("vendor_err: %q is not an error of a completion%s", name, suggest.Word(name, slices.DeleteFunc(slices.Collect(maps.Keys(ib.WCStatuses)), func(n string) bool { return ib.WCStatuses[n] == ib.WCSuccess })))
		}
		if i.VendorErrs == nil {
			i.VendorErrs = map[ib.WCStatus]uint32{}
		}
		i.VendorErrs[status] = uint32(f.VendorErr[name])
	}
	return nil
}

func (f *file) setCounters(i *nic.Identity) error {
	switch f.HWCounters {
	case "", nic.CountersMLX5, nic.CountersRXE:
		i.CounterSet = f.HWCounters
		return nil
	}
	return fmt.Errorf("hw_counters %q: want %s or %s", f.HWCounters, nic.CountersMLX5, nic.CountersRXE)
}

// kept returns v as far as the engine, whose limit is own, can keep it, and says what it has.
func kept(key string, v, own uint64) (uint64, string) {
	switch key {
	case "page_size_cap":
		return v & own, fmt.Sprintf("only bits of %#x", own)
	case "local_ca_ack_delay": // a shorter delay promises more
		return max(v, own), fmt.Sprintf("at least %d", own)
	}
	return min(v, own), fmt.Sprintf("at most %d", own)
}

// setLimits sets the limits that a persona has. Those that are hidden are as far from the engine's
// as it can keep.
func (f *file) setLimits(l *nic.Limits) error {
	engine, limits := engineLimits(), map[string]uint64{}
	for _, key := range slices.Sorted(maps.Keys(f.Limits)) {
		v := uint64(f.Limits[key])
		own, ok := engine[key]
		value, has := kept(key, v, own)
		switch {
		case !ok:
			return fmt.Errorf("limits: %q is not a limit%s", key, suggest.Word(key, slices.Collect(maps.Keys(engine))))
		case v < 1:
			return fmt.Errorf("limits: %s is %d: want at least 1", key, v)
		case key == "local_ca_ack_delay" && v > nic.MaxLocalACKDelay:
			return fmt.Errorf("limits: %s is %d: want at most %d", key, v, nic.MaxLocalACKDelay)
		case value == 0:
			return fmt.Errorf("limits: %s is %#x, and softroce has %s", key, v, has)
		case key == "page_size_cap" && value != v && !slices.Contains(f.Hide, key):
			return fmt.Errorf("limits: %s is %#x, and softroce has %s: list %s under hide to report those", key, v, has, key)
		case value != v && !slices.Contains(f.Hide, key):
			return fmt.Errorf("limits: %s is %d, and softroce has %s: list %s under hide to report that", key, v, has, key)
		}
		limits[key] = value
	}
	if f.roceV1GIDs() == nic.RoCEv1GIDsBefore && limits["gid_tbl_len"] == 1 {
		return errors.New("roce_v1_gids: a gid_tbl_len of 1 leaves no room for a RoCE v2 GID")
	}
	text, err := json.Marshal(limits)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, l)
}

var (
	driverName = regexp.MustCompile(`^[a-z0-9_-]+$`)
	linkSpeed  = regexp.MustCompile(`^\d+\.\d GT/s PCIe$`)
)

// Values of pci that a persona leaves out.
const (
	ethernetClass    = 0x020000
	defaultLinkSpeed = "16.0 GT/s PCIe"
	defaultLinkWidth = 16
)

// maxCPU is the highest number of a processor: Linux has at most 8192.
const maxCPU = 8191

// isCPUList reports whether s is a list of processors and ranges, as Linux prints it.
func isCPUList(s string) bool {
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from > to || to > maxCPU {
			return false
		}
	}
	return true
}

func (f *file) setPCI(i *nic.Identity) error {
	p := f.PCI
	if p == nil {
		return nil
	}
	switch {
	case p.Vendor == 0 || p.Device == 0:
		return errors.New("pci: needs vendor and device")
	case !driverName.MatchString(p.Driver):
		return fmt.Errorf("pci: driver %q: want the name of a kernel module, such as mlx5_core", p.Driver)
	case p.Class > 0xffffff:
		return fmt.Errorf("pci: class %#x: want at most 0xffffff", p.Class)
	case p.LocalCPUs != "" && !isCPUList(p.LocalCPUs):
		return fmt.Errorf("pci: local_cpulist %q: want ranges of processors, such as 0-15,32-47", p.LocalCPUs)
	case p.LinkSpeed != "" && !linkSpeed.MatchString(p.LinkSpeed):
		return fmt.Errorf("pci: link_speed %q: want a speed as Linux prints it, such as %s", p.LinkSpeed, defaultLinkSpeed)
	case p.LinkWidth < 0 || p.LinkWidth > 32:
		return fmt.Errorf("pci: link_width %d: want 1 to 32 lanes", p.LinkWidth)
	case p.NUMANode != nil && (*p.NUMANode < -1 || *p.NUMANode > nic.MaxNUMANode):
		return fmt.Errorf("pci: numa_node %d: want a node, at most %d, or -1 for none", *p.NUMANode, nic.MaxNUMANode)
	}
	d := &nic.PCI{
		Vendor: uint16(p.Vendor), Device: uint16(p.Device), SubsystemVendor: uint16(p.SubsystemVendor), SubsystemDevice: uint16(p.SubsystemDevice),
		Class: cmp.Or(uint32(p.Class), ethernetClass), Driver: p.Driver, NUMANode: -1, LocalCPUs: p.LocalCPUs,
		LinkSpeed: cmp.Or(p.LinkSpeed, defaultLinkSpeed), LinkWidth: cmp.Or(int(p.LinkWidth), defaultLinkWidth),
	}
	if p.NUMANode != nil {
		d.NUMANode = int(*p.NUMANode)
	}
	i.PCI = d
	return nil
}
