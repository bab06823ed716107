package deviceplugin_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/opencontainers/runtime-spec/specs-go"

	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/internal/deviceplugin"
	"softroce/internal/deviceplugin/kubelettest"
	"softroce/internal/nicspec"
)

// A node is a machine with a daemon, a kubelet and a plugin.
type node struct {
	t       *testing.T
	dir     string
	kubelet *kubelettest.Kubelet
	daemon  *daemon.Daemon

	output lockedBuffer
	stop   func() error // the plugin
}

// A lockedBuffer is what a plugin has written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newNode returns a node with a kubelet and a daemon that has these NICs.
func newNode(t *testing.T, nics ...string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "softroce-node-") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir}
	for _, d := range []string{"kubelet", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.kubelet = kubelettest.New(t, filepath.Join(dir, "kubelet"), filepath.Join(dir, "cdi"))
	n.startDaemon(nics...)
	return n
}

func (n *node) socket() string { return filepath.Join(n.dir, "run", "s") }

func (n *node) startDaemon(nics ...string) {
	n.t.Helper()
	c := daemon.Config{Socket: n.socket()}
	for _, s := range nics {
		nic, err := nicspec.Parse(s)
		if err != nil {
			n.t.Fatal(err)
		}
		c.NICs = append(c.NICs, nic)
	}
	var err error
	if n.daemon, err = daemon.Start(c, "test", slog.New(slog.DiscardHandler)); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { n.daemon.Close() })
}

// libraries stand for those of the binary.
var libraries = fstest.MapFS{
	"libibverbs.so.1": {Data: []byte("verbs")}, "librdmacm.so.1": {Data: []byte("cm")}, ".gitignore": {Data: []byte("*")},
}

func (n *node) options(resources ...string) deviceplugin.Options {
	n.t.Helper()
	o := deviceplugin.Options{
		Socket: n.socket(), Shares: 3, KubeletDir: filepath.Join(n.dir, "kubelet"), CDIDir: filepath.Join(n.dir, "cdi"), CDIKind: "softroce.io/nic",
		LibraryDir: filepath.Join(n.dir, "libraries"), Libraries: libraries, Out: &n.output, Err: &n.output,
	}
	for _, s := range resources {
		r, err := deviceplugin.ParseResource(s)
		if err != nil {
			n.t.Fatal(err)
		}
		o.Resources = append(o.Resources, r)
	}
	return o
}

// run starts the plugin until the test ends or stop is called.
func (n *node) run(o deviceplugin.Options) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- deviceplugin.Run(ctx, o) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	n.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			n.t.Errorf("the plugin: %v", err)
		}
		if n.t.Failed() {
			n.t.Logf("the plugin wrote\n%s", n.output.String())
		}
	})
}

// setLink takes the link of a NIC up or down.
func (n *node) setLink(nic string, up bool) {
	n.t.Helper()
	c, err := control.Dial(n.t.Context(), n.socket())
	if err == nil {
		err = c.SetLink(n.t.Context(), nic, up)
		c.Close()
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func TestContainersGetSharesOfNICs(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 6, 0)

	// A container with two shares gets two NICs, and one with all that are left sees each once.
	two := n.kubelet.Allocate("softroce.io/nic", 2)
	if got := two.Response.Envs["SOFTROCE_DEVICE"]; got != "rdma0,rdma1" {
		t.Errorf("a container with %v sees the NICs %q", two.Devices, got)
	}
	if rest := n.kubelet.Allocate("softroce.io/nic", 4); len(rest.Response.CdiDevices) != 2 {
		t.Errorf("a container with %v gets %v", rest.Devices, rest.Response.CdiDevices)
	}
	if left := n.kubelet.Healthy("softroce.io/nic"); len(left) != 0 {
		t.Errorf("%v are left", left)
	}

	// What the runtime makes of it.
	oci := &specs.Spec{}
	var names []string
	for _, d := range two.Response.CdiDevices {
		names = append(names, d.Name)
	}
	if _, err := n.kubelet.Runtime().InjectDevices(oci, names...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SOFTROCE_SOCKET=/run/softroce/s", "LD_LIBRARY_PATH=/usr/lib/softroce"} {
		if !slices.Contains(oci.Process.Env, want) {
			t.Errorf("%s is not in the environment %v", want, oci.Process.Env)
		}
	}
	mounts := map[string]string{}
	for _, m := range oci.Mounts {
		mounts[m.Destination] = m.Source
		if !slices.Contains(m.Options, "ro") {
			t.Errorf("the mount %+v is not read-only", m)
		}
	}
	if len(oci.Mounts) != 2 || mounts["/run/softroce"] != filepath.Dir(n.socket()) {
		t.Errorf("the container has the mounts %v", mounts)
	}
	for name, want := range map[string]string{"libibverbs.so.1": "verbs", "libibverbs.so": "verbs", "librdmacm.so.1": "cm"} {
		if text, err := os.ReadFile(filepath.Join(mounts["/usr/lib/softroce"], name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestKubeletMountsWithoutCDI(t *testing.T) {
	n := newNode(t, "rdma0=fabric")
	o := n.options("softroce.io/nic")
	o.CDIDir = ""
	n.run(o)
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	r := n.kubelet.Allocate("softroce.io/nic", 1).Response
	if len(r.CdiDevices) != 0 || len(r.Mounts) != 2 {
		t.Errorf("the kubelet mounts %v, the runtime %v", r.Mounts, r.CdiDevices)
	}
	for _, m := range r.Mounts {
		if !m.ReadOnly {
			t.Errorf("%v is not read-only", m)
		}
	}
	if r.Envs["SOFTROCE_SOCKET"] != "/run/softroce/s" || r.Envs["LD_LIBRARY_PATH"] == "" || r.Envs["SOFTROCE_DEVICE"] != "rdma0" {
		t.Errorf("the environment is %v", r.Envs)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "cdi")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a directory for CDI specifications: %v", err)
	}
}

func TestResourcesDivideTheNICs(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric", "rdma2=fabric")
	n.run(n.options("example.com/storage=rdma2,rdma0", "softroce.io/nic"))
	n.kubelet.AwaitDevices("example.com/storage", 6, 0)
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	if got := n.kubelet.Allocate("example.com/storage", 2).Response.Envs["SOFTROCE_DEVICE"]; got != "rdma2,rdma0" {
		t.Errorf("storage has the NICs %q", got)
	}
	if got := n.kubelet.Allocate("softroce.io/nic", 1).Response.Envs["SOFTROCE_DEVICE"]; got != "rdma1" {
		t.Errorf("the rest is %q", got)
	}
}

func TestHealthIsTheStateOfThePort(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 6, 0)
	n.setLink("rdma1", false)
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 3)
	if got := n.kubelet.Healthy("softroce.io/nic"); !strings.HasPrefix(got[0], "rdma0:") {
		t.Errorf("rdma1 is down, and %v are healthy", got)
	}
	n.setLink("rdma1", true)
	n.kubelet.AwaitDevices("softroce.io/nic", 6, 0)
	var states []string // other lines may come between them
	for line := range strings.Lines(n.output.String()) {
		if state, ok := strings.CutPrefix(line, "NIC rdma1 "); ok {
			states = append(states, state)
		}
	}
	if want := []string{"is active\n", "is not active\n", "is active\n"}; !slices.Equal(states, want) {
		t.Errorf("the states of rdma1 are %q, want %q", states, want)
	}
}

func TestDaemonRestarts(t *testing.T) {
	n := newNode(t, "rdma0=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	n.daemon.Close()
	n.kubelet.AwaitDevices("softroce.io/nic", 0, 3)
	// The new daemon has one more NIC.
	n.startDaemon("rdma0=fabric", "rdma1=fabric")
	n.kubelet.AwaitDevices("softroce.io/nic", 6, 0)
	if c := n.kubelet.Allocate("softroce.io/nic", 2); len(c.Response.CdiDevices) != 2 {
		t.Errorf("a container gets %v", c.Response.CdiDevices)
	}
	n.daemon.Close()
	n.startDaemon("rdma1=fabric")
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	if out := n.output.String(); strings.Count(out, "waits for the daemon") != 2 {
		t.Errorf("the plugin does not say once for each time that it waits: %q", out)
	}
}

func TestKubeletRestarts(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric")
	n.run(n.options("softroce.io/nic=rdma0", "example.com/other=rdma1"))
	n.kubelet.AwaitRegistrations(2)
	for i := range 3 {
		n.kubelet.Stop()
		n.kubelet.Start()
		n.kubelet.AwaitRegistrations(2 * (i + 2))
		n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
		n.kubelet.AwaitDevices("example.com/other", 3, 0)
		n.kubelet.Allocate("example.com/other", 1)
	}
}

func TestPluginRestarts(t *testing.T) {
	n := newNode(t, "rdma0=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.kubelet.AwaitDevices("softroce.io/nic", 0, 3)
	if sockets, _ := filepath.Glob(filepath.Join(n.dir, "kubelet", "softroce*")); len(sockets) > 0 {
		t.Errorf("the plugin left %v", sockets)
	}
	// A container that restarts meanwhile still needs its CDI device.
	if n.kubelet.Runtime().GetDevice("softroce.io/nic=rdma0") == nil {
		t.Error("the CDI specification ended with the plugin")
	}
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
}

// The plugin starts before the daemon and the kubelet.
func TestPluginWaitsForBothSides(t *testing.T) {
	n := newNode(t, "rdma0=fabric")
	n.daemon.Close()
	n.kubelet.Refuse(status.Error(codes.Unavailable, "not yet\nready"))
	n.run(n.options("softroce.io/nic"))
	n.startDaemon("rdma0=fabric")
	n.kubelet.AwaitRegistrations(2)
	n.kubelet.Refuse(nil)
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	if out := n.output.String(); strings.Count(out, "softroce: the kubelet does not register softroce.io/nic: not yet; ready\n") != 1 {
		t.Errorf("the plugin does not say once in a line why it waits: %q", out)
	}
}

// A socket that another process has removed is made again.
func TestRemovedSocketIsReplaced(t *testing.T) {
	n := newNode(t, "rdma0=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitRegistrations(1)
	if err := os.Remove(filepath.Join(n.dir, "kubelet", "softroce-softroce.io_nic.sock")); err != nil {
		t.Fatal(err)
	}
	n.kubelet.AwaitRegistrations(2)
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
}

func TestInvalidCallsAreRefused(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric")
	n.run(n.options("softroce.io/nic=rdma0", "example.com/other"))
	n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
	client := n.kubelet.Client("softroce.io/nic")
	for want, ids := range map[string][]string{
		`resource softroce.io/nic has no device "rdma1:0"`: {"rdma0:0", "rdma1:0"},
		`resource softroce.io/nic has no device "rdma0:3"`: {"rdma0:3"},
		`resource softroce.io/nic has no device ""`:        {""},
		"device rdma0:1 is requested twice":                {"rdma0:1", "rdma0:1"},
		"a container requests no device":                   {},
	} {
		_, err := client.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("Allocate %q: %v, want %q", ids, err, want)
		}
	}
	for want, r := range map[string]*pluginapi.ContainerPreferredAllocationRequest{
		"2 devices are requested, of 1, and 0": {AvailableDeviceIDs: []string{"rdma0:0"}, AllocationSize: 2},
		"-1 devices are requested":             {AvailableDeviceIDs: []string{"rdma0:0"}, AllocationSize: -1},
		"0 devices are requested, of 1, and 1": {AvailableDeviceIDs: []string{"rdma0:0"}, MustIncludeDeviceIDs: []string{"rdma0:0"}},
		"rdma0:1 must be included":             {AvailableDeviceIDs: []string{"rdma0:0"}, MustIncludeDeviceIDs: []string{"rdma0:1"}, AllocationSize: 1},
		`no device "rdma9:0"`:                  {AvailableDeviceIDs: []string{"rdma9:0"}, AllocationSize: 1},
		`no device "x"`:                        {AvailableDeviceIDs: []string{"rdma0:0"}, MustIncludeDeviceIDs: []string{"x"}, AllocationSize: 1},
	} {
		_, err := client.GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{r}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("GetPreferredAllocation %v: %v, want %q", r, err, want)
		}
	}
	// The plugin goes on.
	n.kubelet.Allocate("softroce.io/nic", 3)
}

func TestPreferredDevicesIncludeGivenOnes(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "rdma1=fabric")
	n.run(n.options("softroce.io/nic"))
	n.kubelet.AwaitDevices("softroce.io/nic", 6, 0)
	for _, c := range []struct{ available, given, want string }{
		{"rdma0:0 rdma0:1 rdma1:0", "", "rdma0:0 rdma1:0"},                // over both
		{"rdma0:0 rdma1:0 rdma1:1", "rdma0:0", "rdma0:0 rdma1:0"},         // over both
		{"rdma0:0 rdma0:1 rdma0:2", "rdma0:2", "rdma0:2 rdma0:0"},         // what there is
		{"rdma0:0 rdma1:1 rdma1:2", "", "rdma1:1 rdma0:0"},                // first where more is left
		{"rdma1:1 rdma1:2 rdma0:0", "rdma1:2 rdma1:1", "rdma1:2 rdma1:1"}, // nothing to choose
	} {
		reply, err := n.kubelet.Client("softroce.io/nic").GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: strings.Fields(c.available), MustIncludeDeviceIDs: strings.Fields(c.given), AllocationSize: 2},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(reply.ContainerResponses[0].DeviceIDs, " "); got != c.want {
			t.Errorf("of %s with %q: %s, want %s", c.available, c.given, got, c.want)
		}
	}
}

func TestBadOptionsAreRefusedInOneLine(t *testing.T) {
	n := newNode(t, "rdma0=fabric", "-odd=fabric")
	file := filepath.Join(n.dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(o *deviceplugin.Options){
		"0 shares of a NIC: want 1 to 1000":                func(o *deviceplugin.Options) { o.Shares = 0 },
		"1001 shares of a NIC: want 1 to 1000":             func(o *deviceplugin.Options) { o.Shares = 1001 },
		"there is no resource":                             func(o *deviceplugin.Options) { o.Resources = nil },
		"resource softroce.io/nic is defined twice":        func(o *deviceplugin.Options) { o.Resources = append(o.Resources, o.Resources[0]) },
		"both have the NICs that no other resource names":  func(o *deviceplugin.Options) { o.Resources = n.options("a.b/c", "d.e/f").Resources },
		"NIC r belongs to the resources a.b/c and d.e/f":   func(o *deviceplugin.Options) { o.Resources = n.options("a.b/c=r", "d.e/f=r").Resources },
		"the daemon has no NIC rdma7 (have: rdma0)":        func(o *deviceplugin.Options) { o.Resources = n.options("a.b/c=rdma7").Resources },
		"NIC -odd: a CDI device needs a name that begins":  func(o *deviceplugin.Options) { o.Resources = n.options("a.b/c=-odd").Resources },
		"the name may have 61 characters with 3 shares":    func(o *deviceplugin.Options) { o.Resources = n.options("a.b/c=" + strings.Repeat("n", 62)).Resources },
		"the kubelet's directory: stat /nonexistent":       func(o *deviceplugin.Options) { o.KubeletDir = "/nonexistent" },
		"file is not a directory":                          func(o *deviceplugin.Options) { o.KubeletDir = file },
		"file name too long for a socket":                  func(o *deviceplugin.Options) { o.KubeletDir = "/" + strings.Repeat("d", 100) },
		`CDI kind "nic": want VENDOR/CLASS`:                func(o *deviceplugin.Options) { o.CDIKind = "nic" },
		`CDI kind "soft roce/nic": want VENDOR/CLASS`:      func(o *deviceplugin.Options) { o.CDIKind = "soft roce/nic" },
		`directory "cdi": want an absolute path`:           func(o *deviceplugin.Options) { o.CDIDir = "cdi" },
		"CDI specification: ":                              func(o *deviceplugin.Options) { o.CDIDir = file },
		"libraries: mkdir " + file:                         func(o *deviceplugin.Options) { o.LibraryDir = file + "/lib" },
		"and " + n.dir + " also contains ":                 func(o *deviceplugin.Options) { o.Socket = filepath.Join(n.dir, "s") },
		"another device plugin serves softroce.io/nic on ": nil,
	} {
		o := n.options("softroce.io/nic")
		if change == nil {
			n.run(o)
			n.kubelet.AwaitDevices("softroce.io/nic", 3, 0)
		} else {
			change(&o)
		}
		err := deviceplugin.Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
		if change == nil {
			n.stop()
		}
	}
	if out := n.output.String(); !strings.Contains(out, "NIC -odd: a CDI device needs a name that begins and ends with a letter or digit; it is not offered") {
		t.Errorf("the plugin wrote %q", out)
	}
}

func TestParseResource(t *testing.T) {
	for s, want := range map[string]string{
		"softroce.io/nic": "softroce.io/nic []", "a.b/c_d=x": "a.b/c_d [x]", "a.b/c=x,y": "a.b/c [x y]",
	} {
		r, err := deviceplugin.ParseResource(s)
		if got := strings.TrimSuffix(r.Name+" ["+strings.Join(r.NICs, " ")+"]", ""); err != nil || got != want {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	for s, want := range map[string]string{
		"": "want DOMAIN/NAME", "nic": "want DOMAIN/NAME", "/nic": "want DOMAIN/NAME", "a.b/": "want DOMAIN/NAME", "a/b/c": "want DOMAIN/NAME", "A.b/c": "want DOMAIN/NAME",
		"a.b/" + strings.Repeat("c", 64): "want DOMAIN/NAME", "kubernetes.io/nic": "outside kubernetes.io", "x.kubernetes.io/nic": "outside kubernetes.io",
		strings.Repeat("d", 250) + "/c": "the domain is too long", "a.b/c=": "name of a NIC is empty", "a.b/c=x,": "name of a NIC is empty", "a.b/c=x,x": "names NIC x twice",
	} {
		if _, err := deviceplugin.ParseResource(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}
