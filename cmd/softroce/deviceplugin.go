package main

import (
	"path/filepath"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"softroce/internal/control"
	"softroce/internal/deviceplugin"
	programs "softroce/internal/run"
)

type devicePluginCmd struct {
	daemonFlags
	Resource   []string `sep:"none" placeholder:"NAME[=NIC,…]" help:"A resource, and the NICs that it has shares of; without them, those that no other resource names. May be repeated (default: softroce.io/nic)."`
	Shares     int      `default:"64" placeholder:"N" help:"How many containers may have a NIC at the same time (default: 64)."`
	Inject     string   `enum:"cdi,mounts" default:"cdi" help:"How containers get the socket and the libraries: by a CDI specification (cdi), or by mounts of the kubelet (mounts)."`
	CDIDir     string   `name:"cdi-dir" default:"/var/run/cdi" placeholder:"DIR" complete:"<files>" help:"Where CDI specifications are written (default: /var/run/cdi)."`
	CDIKind    string   `name:"cdi-kind" default:"softroce.io/nic" placeholder:"VENDOR/CLASS" help:"The kind of the CDI devices (default: softroce.io/nic)."`
	Libraries  string   `default:"${libraryDir}" placeholder:"DIR" complete:"<files>" help:"Where the libraries are copied to, for containers to mount (default: ${libraryDir})."`
	KubeletDir string   `name:"kubelet-dir" default:"${kubeletDir}" placeholder:"DIR" complete:"<files>" help:"Where the sockets of the kubelet and its plugins are (default: ${kubeletDir})."`
}

// nodeLibraryDir is where the C libraries are on a node. The kubelet's directory belongs to root
// and permits programs, which /run may not.
const nodeLibraryDir = "/var/lib/kubelet/plugins/softroce"

// kubeletDir is the kubelet's directory for device plugins.
var kubeletDir = filepath.Clean(pluginapi.DevicePluginPath)

func (d *devicePluginCmd) Run(e *env) error {
	o := deviceplugin.Options{
		Socket: control.SocketPath(e.socket), Shares: d.Shares, KubeletDir: d.KubeletDir,
		CDIDir: d.CDIDir, CDIKind: d.CDIKind, LibraryDir: d.Libraries, Out: e.out, Err: e.err,
	}
	if d.Inject == "mounts" {
		o.CDIDir = ""
	}
	if len(d.Resource) == 0 {
		d.Resource = []string{"softroce.io/nic"}
	}
	for _, s := range d.Resource {
		r, err := deviceplugin.ParseResource(s)
		if err != nil {
			return &usageError{err}
		}
		o.Resources = append(o.Resources, r)
	}
	var err error
	if o.Libraries, err = programs.Libraries(); err != nil {
		return err
	}
	return deviceplugin.Run(e, o)
}
