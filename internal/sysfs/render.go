// Package sysfs renders devices as the files that Linux has for devices of its RDMA subsystem:
// those of /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, and for a
// persona those of its PCI device and driver. Programs that were written for kernel devices read
// GID types, network interfaces and counters from them.
//
// Render returns the files of a device. A Tree keeps files in a directory.
package sysfs

import (
	"cmp"
	"fmt"
	"path"

	"softroce/internal/ib"
	"softroce/internal/metrics"
	"softroce/nic"
	"softroce/transport/congestion"
)

// A File is a file of the tree. Path is relative to the root of the file system.
type File struct {
	Path string
	Text string
	Link bool // a symbolic link to Text
}

// A Device is the state of a device that its files show.
type Device struct {
	Name     string
	Index    int // number of its device file: uverbs0 …
	Identity nic.Identity
	Attr     nic.DeviceAttr
	Port     nic.PortAttr
	Second   *nic.PortAttr // port 2; nil: there is none
	GIDs     []nic.GIDEntry
	PKeys    []uint16
	Counters nic.Counters

	Congestion []congestion.Value // parameters
}

// ReadDevice reads a device's state. It runs on the device's engine.
func ReadDevice(d *nic.Device, index int) Device {
	s := Device{
		Name: d.Name(), Index: index, Identity: d.Identity(), Attr: d.Query(), Port: d.QueryPort(), GIDs: d.GIDs(), PKeys: d.PKeys(),
		Counters: d.Counters(),
	}
	params := d.Congestion()
	s.Congestion = params.Values()
	if second, err := d.QueryPortNumber(2); err == nil {
		s.Second = &second
	}
	return s
}

// CommonFiles returns the files that do not belong to a device.
func CommonFiles() []File {
	return []File{
		{Path: "dev/infiniband/rdma_cm"},
		{Path: "sys/class/infiniband_verbs/abi_version", Text: line("6")},
	}
}

// Render returns the files of a device.
func Render(d *Device) []File {
	r := renderer{device: path.Join("sys/class/infiniband", d.Name)}
	r.classes(d)
	r.port(d, 1, &d.Port, d.GIDs, &d.Counters)
	if d.Second != nil {
		r.port(d, 2, d.Second, nil, &nic.Counters{})
	}
	return r.files
}

type renderer struct {
	device string // directory of the RDMA device
	dir    string // to which files are added
	files  []File
}

func line(s string) string { return s + "\n" }

func (r *renderer) add(name, format string, a ...any) {
	r.files = append(r.files, File{Path: path.Join(r.dir, name), Text: line(fmt.Sprintf(format, a...))})
}

func (r *renderer) link(name, target string) {
	r.files = append(r.files, File{Path: path.Join(r.dir, name), Text: target, Link: true})
}

func (r *renderer) classes(d *Device) {
	verbs := fmt.Sprintf("uverbs%d", d.Index)
	r.files = append(r.files, File{Path: path.Join("dev/infiniband", verbs)})
	r.dir = path.Join("sys/class/infiniband_verbs", verbs)
	if d.Identity.PCI != nil {
		r.pci(d, verbs)
	}
	r.add("ibdev", "%s", d.Name)
	r.add("abi_version", "1")
	r.add("dev", "%d:%d", deviceMajor, firstMinor+d.Index)

	r.dir = r.device
	i := &d.Identity
	r.add("node_type", "1: CA")
	r.add("node_guid", "%s", guid(d.Attr.NodeGUID))
	r.add("sys_image_guid", "%s", guid(d.Attr.SysImageGUID))
	r.add("node_desc", "%s", cmp.Or(i.NodeDesc, d.Name))
	r.add("fw_ver", "%s", d.Attr.FWVer)
	if i.HCAType != "" {
		r.add("hca_type", "%s", i.HCAType)
	}
	if i.BoardID != "" {
		r.add("board_id", "%s", i.BoardID)
	}
	if i.PCI != nil {
		r.add("hw_rev", "%x", d.Attr.HWVer)
		return
	}
	r.add("device/infiniband/"+d.Name+"/node_guid", "%s", guid(d.Attr.NodeGUID))
	r.add("device/infiniband_verbs/"+verbs+"/ibdev", "%s", d.Name)
	r.add("device/vendor", "0x%04x", d.Attr.VendorID&0xffff)
	r.add("device/device", "0x%04x", d.Attr.VendorPartID&0xffff)
	r.add("device/numa_node", "-1")
	r.netdev(d, "device/net")
}

// netdev adds a link to the network interface of the device.
func (r *renderer) netdev(d *Device, dir string) {
	if d.Port.Netdev != "" {
		r.link(path.Join(dir, d.Port.Netdev), "/sys/class/net/"+d.Port.Netdev)
	}
}

// Device numbers, as in the kernel.
const (
	deviceMajor = 231
	firstMinor  = 192
)

func guid(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}

// physStates are the kernel's names of physical port states.
var physStates = map[int]string{ib.PhysDisabled: "Disabled", ib.PhysLinkUp: "LinkUp"}

// port adds the directory of a port.
func (r *renderer) port(d *Device, number int, p *nic.PortAttr, gids []nic.GIDEntry, c *nic.Counters) {
	r.dir = path.Join(r.device, fmt.Sprintf("ports/%d", number))
	r.add("state", "%d: %v", p.State, p.State)
	r.add("phys_state", "%d: %s", p.PhysState, physStates[p.PhysState])
	r.add("link_layer", "Ethernet")
	r.add("rate", "%s", ib.PortRate(p.ActiveSpeed, p.ActiveWidth))
	r.add("lid", "0x0")
	r.add("sm_lid", "0x0")
	r.add("sm_sl", "0")
	r.add("lid_mask_count", "0")
	r.add("cap_mask", "0x%08x", p.CapFlags)
	for i, k := range d.PKeys {
		r.add(fmt.Sprintf("pkeys/%d", i), "%#04x", k)
	}
	r.gids(p.GIDTableLen, gids)
	r.counters(d.Identity.CounterSet, c)
}

// gids adds the GID table. As in the kernel, there is a file for each index: an entry that is not
// in use reads as a GID of zeros, and its attributes cannot be read, for which their files are
// empty.
func (r *renderer) gids(length int, used []nic.GIDEntry) {
	table := make([]nic.GIDEntry, length)
	for _, g := range used {
		table[g.Index] = g
	}
	for i, g := range table {
		r.add(fmt.Sprintf("gids/%d", i), "%s", g.GID)
		typ := ""
		switch {
		case g.RoCEv1:
			typ = "IB/RoCE v1"
		case g.GID != (nic.GID{}):
			typ = "RoCE v2"
		}
		r.attribute(fmt.Sprintf("gid_attrs/types/%d", i), typ)
		r.attribute(fmt.Sprintf("gid_attrs/ndevs/%d", i), g.Netdev)
	}
}

// attribute adds a file that reads as EINVAL if its text is empty: libibverbs.so.1 does that.
func (r *renderer) attribute(name, text string) {
	if text != "" {
		text = line(text)
	}
	r.files = append(r.files, File{Path: path.Join(r.dir, name), Text: text})
}

// counters adds the counters of the InfiniBand specification to counters, and those of a driver, or
// all of the device, to hw_counters. As in the kernel, lifespan is the age in milliseconds up to
// which the values are not read again.
func (r *renderer) counters(set nic.CounterSet, c *nic.Counters) {
	for _, m := range metrics.PortCounters(set, c) {
		r.add("counters/"+m.Label, "%d", m.Value)
	}
	for _, m := range metrics.HWCounters(set, c) {
		r.add("hw_counters/"+m.Label, "%d", m.Value)
	}
	if set != "" {
		r.add("hw_counters/lifespan", "%d", maxAge.Milliseconds())
	}
}
