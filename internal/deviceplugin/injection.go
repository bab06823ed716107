package deviceplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"softroce/internal/control"
	"softroce/internal/run"
)

// Where a container finds what it gets. The directory of the socket is that of
// control.DefaultSocket, so that commands find the daemon without an environment.
const (
	containerSocketDir = "/run/softroce"
	containerLibraries = "/usr/lib/softroce"
)

// libraryPathEnv lets unmodified programs of a container find the C libraries. Programs that use
// neither are not affected, as they would be by LD_PRELOAD.
const libraryPathEnv = "LD_LIBRARY_PATH"

// An injection is what a container gets along with its NICs.
type injection struct {
	socket    string // of the daemon, on the node
	libraries string // the directory of the C libraries on the node

	// A CDI specification of this kind, VENDOR/CLASS, is written to cdiDir. If cdiDir is empty, the
	// kubelet mounts the directories itself.
	cdiDir string
	kind   string
}

// newInjection checks what the user has chosen.
func newInjection(o *Options) (*injection, error) {
	in := &injection{socket: o.Socket, libraries: o.LibraryDir, cdiDir: o.CDIDir, kind: o.CDIKind}
	vendor, class := parser.ParseQualifier(in.kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil || vendor == "" {
		return nil, fmt.Errorf("CDI kind %q: want VENDOR/CLASS, such as softroce.io/nic", in.kind)
	}
	for _, dir := range []string{in.libraries, in.cdiDir} {
		if dir != "" && !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("directory %q: want an absolute path, which is the same on the node", dir)
		}
	}
	return in, checkSocketDir(filepath.Dir(in.socket))
}

// checkSocketDir returns an error if a directory holds more than sockets: pods see all of it.
func checkSocketDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // until the daemon has started
	}
	if err != nil {
		return fmt.Errorf("the directory of the socket: %w", err)
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket {
			return fmt.Errorf("pods see the directory of the socket, and %s also contains %s: want a directory with the socket alone", dir, e.Name())
		}
	}
	return nil
}

// installLibraries puts the C libraries into the directory that containers mount. Files are
// replaced one by one: containers that run see the new ones.
func (in *injection) installLibraries(libraries fs.FS) error {
	names, err := fs.Glob(libraries, "*.so.*")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(in.libraries, 0o755); err != nil {
		return fmt.Errorf("libraries: %w", err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(libraries, name)
		if err == nil {
			err = replaceFile(filepath.Join(in.libraries, name), func(next string) error { return writeReadable(next, text, 0o755) })
		}
		// For programs that load a library by its name without a version.
		if stem, _, ok := strings.Cut(name, ".so."); ok && err == nil {
			err = replaceFile(filepath.Join(in.libraries, stem+".so"), func(next string) error { return os.Symlink(name, next) })
		}
		if err != nil {
			return fmt.Errorf("libraries: %w", err)
		}
	}
	return nil
}

// replaceFile lets create make a file under another name in the same directory, and renames it.
func replaceFile(file string, create func(next string) error) error {
	next := file + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(next); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// writeReadable writes a file with a mode that does not depend on the umask.
func writeReadable(file string, text []byte, mode fs.FileMode) error {
	if err := os.WriteFile(file, text, mode); err != nil {
		return err
	}
	return os.Chmod(file, mode)
}

// environment returns what is the same for all containers.
func (in *injection) environment() map[string]string {
	return map[string]string{
		control.SocketEnv: path.Join(containerSocketDir, filepath.Base(in.socket)),
		libraryPathEnv:    containerLibraries,
	}
}

// mounts returns what a container sees of the node: the path there, and its own.
func (in *injection) mounts() [][2]string {
	return [][2]string{{filepath.Dir(in.socket), containerSocketDir}, {in.libraries, containerLibraries}}
}

// writeSpec writes the CDI specification with a device for each NIC.
func (in *injection) writeSpec(nics []nic) error {
	if in.cdiDir == "" || len(nics) == 0 {
		return nil
	}
	var edits cdispecs.ContainerEdits
	for key, value := range in.environment() {
		edits.Env = append(edits.Env, key+"="+value)
	}
	for _, m := range in.mounts() {
		edits.Mounts = append(edits.Mounts, &cdispecs.Mount{HostPath: m[0], ContainerPath: m[1], Options: []string{"ro", "nosuid", "nodev", "bind"}})
	}
	spec := &cdispecs.Spec{Kind: in.kind}
	for _, n := range nics {
		spec.Devices = append(spec.Devices, cdispecs.Device{Name: n.name, ContainerEdits: edits})
	}
	var err error
	if spec.Version, err = cdispecs.MinimumRequiredVersion(spec); err != nil {
		return fmt.Errorf("CDI specification: %w", err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(in.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("CDI specification: %w", err)
	}
	if err := cache.WriteSpec(spec, in.specName()); err != nil {
		return fmt.Errorf("CDI specification: %w", err)
	}
	// Rootless runtimes read it too.
	return os.Chmod(filepath.Join(in.cdiDir, in.specName()), 0o644)
}

func (in *injection) specName() string {
	vendor, class := parser.ParseQualifier(in.kind)
	return cdi.GenerateSpecName(vendor, class) + ".json"
}

// response returns what the kubelet does for a container with these NICs.
func (in *injection) response(nics []string) *pluginapi.ContainerAllocateResponse {
	r := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{run.DeviceEnv: strings.Join(nics, ",")}}
	if in.cdiDir != "" {
		for _, n := range nics {
			r.CdiDevices = append(r.CdiDevices, &pluginapi.CDIDevice{Name: in.kind + "=" + n})
		}
		return r
	}
	for key, value := range in.environment() {
		r.Envs[key] = value
	}
	for _, m := range in.mounts() {
		r.Mounts = append(r.Mounts, &pluginapi.Mount{HostPath: m[0], ContainerPath: m[1], ReadOnly: true})
	}
	return r
}
