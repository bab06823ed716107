package sysfs

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// pciDomain is the PCI domain of the emulated devices. Hosts number theirs from 0, Hyper-V takes
// random numbers. The path interposer of the C libraries recognizes the paths of a device by it.
const pciDomain = "50ce"

// mlx5Driver is the driver of ConnectX and BlueField. It shows its parameters of congestion control
// in debugfs.
const mlx5Driver = "mlx5_core"

// pci adds the PCI device of d, on a bus of its own. As in the kernel, the RDMA device and its
// device file belong to it, and the directories of their classes have links to them.
func (r *renderer) pci(d *Device, verbs string) {
	p := d.Identity.PCI
	root := fmt.Sprintf("%s:%02x", pciDomain, d.Index)
	address := root + ":00.0"
	device := path.Join("sys/devices/pci"+root, address)
	r.device = path.Join(device, "infiniband", d.Name)
	deviceFile := path.Join(device, "infiniband_verbs", verbs)

	r.dir = ""
	for link, target := range map[string]string{
		"sys/class/infiniband/" + d.Name:                  r.device,
		"sys/class/infiniband_verbs/" + verbs:             deviceFile,
		"sys/bus/pci/devices/" + address:                  device,
		"sys/bus/pci/drivers/" + p.Driver + "/" + address: device,
		device + "/driver":                                "sys/bus/pci/drivers/" + p.Driver,
		"sys/bus/pci/drivers/" + p.Driver + "/module":     "sys/module/" + p.Driver,
		device + "/subsystem":                             "sys/bus/pci",
	} {
		r.relative(link, target)
	}
	for _, dir := range []string{r.device, deviceFile} {
		r.link(dir+"/device", "../../../"+address) // whose last component programs take
	}
	r.dir = path.Join("sys/module", p.Driver)
	r.add("initstate", "live")
	r.dir = device
	r.add("vendor", "0x%04x", p.Vendor)
	r.add("device", "0x%04x", p.Device)
	r.add("subsystem_vendor", "0x%04x", p.SubsystemVendor)
	r.add("subsystem_device", "0x%04x", p.SubsystemDevice)
	r.add("class", "0x%06x", p.Class)
	r.add("revision", "0x00")
	r.add("numa_node", "%d", p.NUMANode)
	if p.LocalCPUs != "" {
		r.add("local_cpulist", "%s", p.LocalCPUs)
	} else {
		r.link("local_cpulist", "/sys/devices/system/cpu/possible")
	}
	for _, which := range []string{"current", "max"} {
		r.add(which+"_link_speed", "%s", p.LinkSpeed)
		r.add(which+"_link_width", "%d", p.LinkWidth)
	}
	r.add("uevent", "DRIVER=%s\nPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s",
		p.Driver, p.Class, p.Vendor, p.Device, p.SubsystemVendor, p.SubsystemDevice, address)
	r.netdev(d, "net")
	if p.Driver == mlx5Driver {
		r.dir = path.Join("sys/kernel/debug/mlx5", address, "cc_params")
		for _, v := range d.Congestion {
			if strings.HasPrefix(v.Name, "np_") || strings.HasPrefix(v.Name, "rp_") { // those of mlx5
				r.add(v.Name, "%d", v.Value)
			}
		}
	}
	r.dir = deviceFile
}

// relative adds a link to a file of the tree.
func (r *renderer) relative(name, target string) {
	to, err := filepath.Rel(path.Dir(path.Join(r.dir, name)), target)
	if err != nil {
		panic(err) // both are relative to the root of the tree
	}
	r.link(name, to)
}
