// Package nicspec reads and writes the text form of a NIC, NAME=LINK, that the --nic flag, the
// configuration file and the scenario runner share.
package nicspec

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"softroce/internal/persona"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport/congestion"
	"softroce/wire"
)

// A Kind is the kind of a NIC's link.
type Kind string

// Link kinds.
const (
	Fabric Kind = "fabric" // connects the fabric NICs of one daemon
	Packet Kind = "packet" // a network interface, through an AF_PACKET socket
	UDP    Kind = "udp"    // a network interface, through a UDP socket
	XDP    Kind = "xdp"    // a network interface, through AF_XDP sockets
	Auto   Kind = "auto"   // a network interface, through the first of XDP with zero-copy, Packet and UDP that can be opened
	Dgram  Kind = "dgram"  // Ethernet frames in UDP datagrams, to the NIC of a virtual machine
)

// A NIC is the configuration of one emulated device. Its text form, which flags and the
// configuration file use, is NAME=LINK, where LINK is one of
//
//	fabric[:ADDR[@VLAN][,ADDR[@VLAN]…]]
//	packet:IFACE
//	udp:IFACE
//	xdp:IFACE
//	auto:IFACE
//	dgram:LOCAL:PORT,REMOTE:PORT,ADDR/BITS[@VLAN][,ADDR/BITS[@VLAN]…]
//
// Links of kind fabric and dgram also take mtu=BYTES and mac=XX:XX:XX:XX:XX:XX. All links take
// pkeys=KEY[+KEY…], guid=XXXX:XXXX:XXXX:XXXX, persona=NAME, numa=NODE, rate=RATE, delay=TIME,
// engines=N,
// default_roce_mode=v1|v2 and cc=ALGORITHM[+PARAMETER=VALUE…].
// The name of a persona is that of a preset or of a file, without a comma and brackets.
type NIC struct {
	Name       string
	Kind       Kind
	Interface  string             // packet, udp, xdp, auto
	Addrs      []netip.Prefix     // fabric, dgram
	VLANs      []wire.VLANAddress // fabric, dgram: further addresses, in tagged VLANs
	Local      netip.AddrPort     // dgram
	Remote     netip.AddrPort     // dgram
	MTU        int                // fabric, dgram; 0 means FabricMTU, or 1500 on dgram
	MAC        [6]byte            // fabric, dgram; all zeros means a MAC derived from the name
	PKeys      []uint16           // the P_Key table; nil means the default P_Key alone
	GUID       uint64             // node GUID; 0 means one derived from the MAC
	Persona    string             // the model that the NIC reports to be; "" means softroce's own
	Shape      wire.Shape         // rate and delay of the port
	Congestion *congestion.Params // nil means the defaults
	NUMANode   *int               // that of the persona's PCI device; nil means the persona's
	Engines    int                // that drive the NIC together; 0 means the default of the daemon

	// DefaultRoCEMode is what connections use that programs request with rdma_cm.
	DefaultRoCEMode packet.Network
}

// FabricMTU is the default IP MTU of fabric NICs: the jumbo size, which carries a path MTU of 4096.
const FabricMTU = 9000

const linkForms = "fabric[:ADDR,…], packet:IFACE, udp:IFACE, xdp:IFACE, auto:IFACE or dgram:LOCAL:PORT,REMOTE:PORT,ADDR/BITS"

// options are those of every link.
const options = "pkeys=KEY[+KEY…], guid=XXXX:XXXX:XXXX:XXXX, persona=NAME, numa=NODE, rate=RATE, delay=TIME, engines=N, default_roce_mode=v1|v2 or cc=ALGORITHM[+PARAMETER=VALUE…]"

// Defaults returns the NICs of a daemon that is given none.
func Defaults() []NIC {
	return []NIC{
		{Name: "softroce0", Kind: Fabric, Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Name: "softroce1", Kind: Fabric, Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}},
	}
}

// Parse parses NAME=LINK.
func Parse(s string) (NIC, error) {
	name, link, ok := strings.Cut(s, "=")
	if !ok {
		return NIC{}, fmt.Errorf("NIC %q has no link: want NAME=LINK with LINK %s", s, linkForms)
	}
	n := NIC{Name: name}
	if err := checkName(name); err != nil {
		return NIC{}, err
	}
	err := n.parseLink(link)
	if err == nil {
		_, _, err = n.Identity()
	}
	if err != nil {
		return NIC{}, fmt.Errorf("NIC %s: %w", name, err)
	}
	return n, nil
}

// maxName is the size of ibv_device.name (IBV_SYSFS_NAME_MAX) without the NUL.
const maxName = 63

func checkName(name string) error {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) || name == "." || name == ".." {
		return fmt.Errorf("NIC name %q: want 1 to %d letters, digits, '-', '_' or '.'", name, maxName)
	}
	return nil
}

func (n *NIC) parseLink(link string) error {
	kind, rest, _ := strings.Cut(link, ":")
	n.Kind = Kind(kind)
	switch n.Kind {
	case Packet, UDP, XDP, Auto:
		iface, options, _ := strings.Cut(rest, ",")
		if iface == "" || strings.ContainsAny(iface, "/ ") {
			return fmt.Errorf("link %q: want %s:IFACE with the name of one network interface", link, kind)
		}
		n.Interface = iface
		return n.parseItems(options)
	case Fabric:
		return n.parseItems(rest)
	case Dgram:
		return n.parseDgram(rest)
	}
	return fmt.Errorf("link %q: unknown kind: want %s", link, linkForms)
}

func (n *NIC) parseDgram(rest string) error {
	parts := strings.SplitN(rest, ",", 3)
	if len(parts) < 3 {
		return fmt.Errorf("link dgram:%s is incomplete: want dgram:LOCAL:PORT,REMOTE:PORT,ADDR/BITS", rest)
	}
	var err error
	if n.Local, err = netip.ParseAddrPort(parts[0]); err != nil {
		return fmt.Errorf("local end %q of dgram: want ADDR:PORT, such as 127.0.0.1:5001", parts[0])
	}
	if n.Remote, err = netip.ParseAddrPort(parts[1]); err != nil {
		return fmt.Errorf("remote end %q of dgram: want ADDR:PORT, such as 127.0.0.1:5000", parts[1])
	}
	return n.parseItems(parts[2])
}

// parseItems parses addresses and options, separated by commas.
func (n *NIC) parseItems(s string) error {
	if s == "" {
		return nil
	}
	given := map[string]bool{} // options
	for item := range strings.SplitSeq(s, ",") {
		key, value, option := strings.Cut(item, "=")
		var err error
		if option && given[key] {
			return fmt.Errorf("%q: %s is given twice", item, key)
		}
		given[key] = option
		switch {
		case key == "pkeys" && option:
			n.PKeys, err = ParsePKeys(value)
		case key == "guid" && option:
			n.GUID, err = parseGUID(value)
		case key == "persona" && option:
			n.Persona, err = parsePersona(value)
		case key == "numa" && option:
			n.NUMANode, err = parseNUMANode(value)
		case key == "rate" && option:
			n.Shape.Rate, err = ParseRate(value)
		case key == "delay" && option:
			n.Shape.Delay, err = parseDelay(value)
		case key == "engines" && option:
			n.Engines, err = parseEngines(value)
		case key == "default_roce_mode" && option:
			n.DefaultRoCEMode, err = parseRoCEMode(value)
		case key == "cc" && option:
			n.Congestion, err = parseCongestion(value)
		case n.Interface != "":
			err = fmt.Errorf("%q: the addresses and the MTU are those of the interface; want "+options, item)
		case !option:
			err = n.addAddr(item)
		case key == "mtu":
			n.MTU, err = parseMTU(value)
		case key == "mac":
			n.MAC, err = parseMAC(value)
		default:
			err = fmt.Errorf("unknown option %q: want mtu=BYTES, mac=XX:XX:XX:XX:XX:XX, "+options, item)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addAddr parses ADDR or ADDR@VLAN.
func (n *NIC) addAddr(s string) error {
	addr, vlan, tagged := strings.Cut(s, "@")
	p, err := n.parseAddr(addr)
	if err != nil {
		return err
	}
	if !tagged {
		n.Addrs = append(n.Addrs, p)
		return nil
	}
	id, err := strconv.ParseUint(vlan, 10, 16)
	if err != nil || id < wire.MinVLAN || id > wire.MaxVLAN {
		return fmt.Errorf("VLAN %q of address %q: want %d to %d", vlan, s, wire.MinVLAN, wire.MaxVLAN)
	}
	n.VLANs = append(n.VLANs, wire.VLANAddress{Prefix: p, VLAN: uint16(id)})
	return nil
}

// parseAddr parses an address with an optional prefix length. On a fabric the length defaults to
// that of the default NICs: 24 for IPv4, 64 for IPv6.
func (n *NIC) parseAddr(s string) (netip.Prefix, error) {
	p, prefixErr := netip.ParsePrefix(s)
	a, err := netip.ParseAddr(s)
	switch {
	case p.Addr().Is4In6(), a.Is4In6():
		return netip.Prefix{}, fmt.Errorf("address %q: want the IPv4 address in it by itself, such as 192.0.2.1", s)
	case prefixErr == nil:
		return p, nil
	case err != nil || a.Zone() != "":
		return netip.Prefix{}, fmt.Errorf("address %q: want an IPv4 or IPv6 address, such as 192.0.2.1 or 2001:db8::1/64", s)
	case n.Kind == Dgram:
		return netip.Prefix{}, fmt.Errorf("address %q: want a prefix length, such as %s/24", s, s)
	case a.Is4():
		return netip.PrefixFrom(a, 24), nil
	}
	return netip.PrefixFrom(a, 64), nil
}

// minMTU is the smallest IP MTU that carries a path MTU of 256 with the longest headers; maxMTU is
// the longest IP packet.
const minMTU, maxMTU = 256 + 80, 65535

func parseMTU(s string) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || v < minMTU || v > maxMTU {
		return 0, fmt.Errorf("mtu %q: want %d to %d bytes", s, minMTU, maxMTU)
	}
	return v, nil
}

func parseMAC(s string) (mac [6]byte, err error) {
	parts := strings.Split(s, ":")
	for i, p := range parts {
		v, perr := strconv.ParseUint(p, 16, 8)
		if perr != nil || len(parts) != len(mac) || len(p) != 2 {
			return mac, fmt.Errorf("mac %q: want six bytes in hexadecimal, such as 02:00:00:00:00:01", s)
		}
		mac[i] = byte(v)
	}
	if mac[0]&1 != 0 || mac == ([6]byte{}) {
		return mac, fmt.Errorf("mac %q: want a unicast address that is not all zeros", s)
	}
	return mac, nil
}

// parseGUID parses a GUID in the form of sysfs and ibv_devinfo.
func parseGUID(s string) (guid uint64, err error) {
	parts := strings.Split(s, ":")
	for _, p := range parts {
		v, perr := strconv.ParseUint(p, 16, 16)
		if perr != nil || len(p) != 4 || len(parts) != 4 {
			return 0, fmt.Errorf("guid %q: want 16 hexadecimal digits in groups of four, such as 0200:00ff:fe00:0001", s)
		}
		guid = guid<<16 | v
	}
	if guid == 0 {
		return 0, fmt.Errorf("guid %q: want one that is not zero", s)
	}
	return guid, nil
}

func parsePersona(s string) (string, error) {
	if s == "" {
		return "", errors.New("persona \"\": want the name of a preset or of a file")
	}
	return s, nil
}

func parseEngines(s string) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || v < 1 || v > nic.MaxSlices {
		return 0, fmt.Errorf("engines %q: want 1 to %d", s, nic.MaxSlices)
	}
	return v, nil
}

// CanShare returns an error if several engines cannot drive the NIC.
func (n NIC) CanShare() error {
	switch {
	case n.Kind == Dgram:
		return errors.New("a NIC on dgram has one engine; want fabric, packet, udp or xdp")
	case n.Shape.Rate != 0: // the engine that asks first would take all of it
		return errors.New("a NIC with rate=RATE has one engine")
	}
	return nil
}

func parseRoCEMode(s string) (packet.Network, error) {
	switch s {
	case "v1":
		return packet.RoCEv1, nil
	case "v2":
		return packet.RoCEv2, nil
	}
	return 0, fmt.Errorf("default_roce_mode %q: want v1 or v2", s)
}

func parseNUMANode(s string) (*int, error) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v > nic.MaxNUMANode {
		return nil, fmt.Errorf("numa %q: want the number of a NUMA node, at most %d", s, nic.MaxNUMANode)
	}
	node := int(v)
	return &node, nil
}

// parseCongestion parses the algorithm of congestion control and parameters that differ from the
// defaults.
func parseCongestion(s string) (*congestion.Params, error) {
	name, params, more := strings.Cut(s, "+")
	p := congestion.Defaults()
	var err error
	if p.Algorithm, err = congestion.ParseAlgorithm(name); err != nil {
		return nil, fmt.Errorf("cc: %w", err)
	}
	for more {
		var param string
		param, params, more = strings.Cut(params, "+")
		key, value, ok := strings.Cut(param, "=")
		if !ok {
			return nil, fmt.Errorf("cc: %q: want PARAMETER=VALUE, such as rp_ai_rate=40", param)
		}
		if err := p.SetText(key, value); err != nil {
			return nil, fmt.Errorf("cc: %w", err)
		}
	}
	return &p, nil
}

// rateUnits are those of a rate, in bits per second.
var rateUnits = []struct {
	suffix string
	bits   float64
}{{"K", 1e3}, {"M", 1e6}, {"G", 1e9}}

// minRate is the lowest rate: a packet of 9000 bytes takes 72 ms.
const minRate, maxRate = 1e6, 1e12

// ParseRate parses bits per second: 25G, 2.5G or 100M.
func ParseRate(s string) (int64, error) {
	for _, u := range rateUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		v, err := strconv.ParseFloat(digits, 64)
		if ok && err == nil && v*u.bits >= minRate && v*u.bits <= maxRate {
			return int64(math.Round(v * u.bits)), nil
		}
	}
	return 0, fmt.Errorf("rate %q: want 1M to 1000G, in bits per second", s)
}

func parseDelay(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > wire.MaxShapeDelay {
		return 0, fmt.Errorf("delay %q: want a time up to %v, such as 5us", s, wire.MaxShapeDelay)
	}
	return d, nil
}

// formatRate writes a rate as ParseRate reads it.
func formatRate(bits int64) string {
	u := rateUnits[0]
	for _, larger := range rateUnits[1:] {
		if float64(bits) >= larger.bits {
			u = larger
		}
	}
	return strconv.FormatFloat(float64(bits)/u.bits, 'f', -1, 64) + u.suffix
}

// Identity returns the model that n reports to be, and its limits.
func (n *NIC) Identity() (nic.Identity, nic.Limits, error) {
	if n.Persona == "" {
		if n.NUMANode != nil {
			return nic.Identity{}, nic.Limits{}, errors.New("numa needs a persona with a PCI device")
		}
		return nic.Identity{}, nic.Limits{}, nil
	}
	p, err := persona.Load(n.Persona)
	if err != nil {
		return nic.Identity{}, nic.Limits{}, err
	}
	if n.NUMANode != nil {
		if p.Identity.PCI == nil {
			return nic.Identity{}, nic.Limits{}, fmt.Errorf("numa needs a PCI device, which persona %s does not have", n.Persona)
		}
		p.Identity.PCI.NUMANode = *n.NUMANode
	}
	return p.Identity, p.Limits, nil
}

// ParsePKeys parses a P_Key table: keys in index order, separated by '+'. A 0 leaves its index
// empty.
func ParsePKeys(s string) (keys []uint16, err error) {
	for key := range strings.SplitSeq(s, "+") {
		k, err := strconv.ParseUint(key, 0, 16)
		if err != nil {
			return nil, fmt.Errorf("pkeys %q: want 16-bit numbers separated by '+', such as 0xffff+0x8001", s)
		}
		keys = append(keys, uint16(k))
	}
	if err := nic.CheckPKeys(keys); err != nil {
		return nil, fmt.Errorf("pkeys %q: %w", s, err)
	}
	return keys, nil
}

// String returns the text form of n.
func (n NIC) String() string {
	var b strings.Builder
	b.WriteString(n.Name + "=" + string(n.Kind))
	sep := ":"
	item := func(s string) { b.WriteString(sep + s); sep = "," }
	if n.Interface != "" {
		item(n.Interface)
	}
	if n.Kind == Dgram {
		item(n.Local.String())
		item(n.Remote.String())
	}
	for _, a := range n.Addrs {
		item(a.String())
	}
	for _, v := range n.VLANs {
		item(fmt.Sprintf("%v@%d", v.Prefix, v.VLAN))
	}
	if n.MTU != 0 {
		item(fmt.Sprintf("mtu=%d", n.MTU))
	}
	if m := n.MAC; m != [6]byte{} {
		item(fmt.Sprintf("mac=%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]))
	}
	for i, k := range n.PKeys {
		key := fmt.Sprintf("%#04x", k)
		if i == 0 {
			item("pkeys=" + key)
		} else {
			b.WriteString("+" + key)
		}
	}
	if g := n.GUID; g != 0 {
		item(fmt.Sprintf("guid=%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff))
	}
	if n.Persona != "" {
		item("persona=" + n.Persona)
	}
	if n.NUMANode != nil {
		item(fmt.Sprintf("numa=%d", *n.NUMANode))
	}
	if n.Shape.Rate != 0 {
		item("rate=" + formatRate(n.Shape.Rate))
	}
	if n.Shape.Delay != 0 {
		item(fmt.Sprintf("delay=%v", n.Shape.Delay))
	}
	if n.Engines != 0 {
		item(fmt.Sprintf("engines=%d", n.Engines))
	}
	if n.DefaultRoCEMode == packet.RoCEv1 {
		item("default_roce_mode=v1")
	}
	if p := n.Congestion; p != nil {
		item("cc=" + p.Algorithm.String())
		standard := congestion.Defaults()
		for i, v := range p.Values() {
			if v != standard.Values()[i] {
				fmt.Fprintf(&b, "+%s=%d", v.Name, v.Value)
			}
		}
	}
	return b.String()
}
