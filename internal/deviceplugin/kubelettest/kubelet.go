// Package kubelettest is the side of the device plugin API that a kubelet has, for tests. It checks
// what a plugin says: a violation of the API fails the test.
package kubelettest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// limit bounds each wait.
const limit = 30 * time.Second

// A Kubelet registers plugins and follows their devices, as the device manager of a kubelet does.
type Kubelet struct {
	pluginapi.UnimplementedRegistrationServer

	t      testing.TB
	dir    string
	cdiDir string

	mu      sync.Mutex
	news    chan struct{} // closed at the next change
	server  *grpc.Server
	plugins map[string]*plugin // by resource
	refusal error              // the reply to the next registrations
	count   int                // registrations
}

// A plugin is a registered resource.
type plugin struct {
	conn    *grpc.ClientConn
	client  pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	devices map[string]string // health by ID; nil: nothing was sent yet
	used    map[string]bool
	end     context.CancelFunc
	ended   chan struct{}
}

// New starts a kubelet whose plugins have their sockets in dir, and whose container runtime reads
// the CDI specifications in cdiDir.
func New(t testing.TB, dir, cdiDir string) *Kubelet {
	k := &Kubelet{t: t, dir: dir, cdiDir: cdiDir, news: make(chan struct{})}
	k.Start()
	t.Cleanup(k.Stop)
	return k
}

// Start starts the kubelet. It first removes what plugins have left in the directory, as kubelets
// do.
func (k *Kubelet) Start() {
	k.t.Helper()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(k.dir, e.Name())); err != nil {
			k.t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		k.t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins = map[string]*plugin{}
	k.server = grpc.NewServer()
	pluginapi.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(l)
}

// Stop ends the kubelet. The plugins' sockets remain.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server, plugins := k.server, k.plugins
	k.server, k.plugins = nil, nil
	k.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	for _, p := range plugins {
		p.close()
	}
}

func (p *plugin) close() {
	p.end()
	<-p.ended
	p.conn.Close()
}

// Refuse makes registrations fail with an error; nil permits them.
func (k *Kubelet) Refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusal = err
}

// changed wakes up what waits. The caller holds the lock.
func (k *Kubelet) changed() {
	close(k.news)
	k.news = make(chan struct{})
}

// Register implements the kubelet's API.
func (k *Kubelet) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	// A registration counts when it has succeeded or failed.
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.count++
		k.changed()
	}()
	k.mu.Lock()
	refusal := k.refusal
	k.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	if err := k.check(r); err != nil {
		k.t.Errorf("a plugin registers with %v: %v", r, err)
		return nil, err
	}
	p, err := k.connect(r)
	if err != nil {
		if status.Code(err) != codes.Unavailable { // the plugin has ended
			k.t.Errorf("registration of %s: %v", r.ResourceName, err)
		}
		return nil, err
	}
	k.mu.Lock()
	old := k.plugins[r.ResourceName]
	if k.plugins == nil {
		k.mu.Unlock()
		p.close()
		return nil, fmt.Errorf("the kubelet ends")
	}
	k.plugins[r.ResourceName] = p
	k.mu.Unlock()
	if old != nil {
		old.close()
	}
	return &pluginapi.Empty{}, nil
}

func (k *Kubelet) check(r *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], r.Version) {
		return fmt.Errorf("version %q is not supported", r.Version)
	}
	if r.Endpoint == "" || filepath.Base(r.Endpoint) != r.Endpoint {
		return fmt.Errorf("endpoint %q is not the name of a file", r.Endpoint)
	}
	if problems := validation.IsQualifiedName(r.ResourceName); len(problems) > 0 || !strings.Contains(r.ResourceName, "/") {
		return fmt.Errorf("resource %q: %v", r.ResourceName, problems)
	}
	return nil
}

// connect connects to a plugin that registers, as the kubelet does before it replies.
func (k *Kubelet) connect(r *pluginapi.RegisterRequest) (*plugin, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	p := &plugin{conn: conn, client: pluginapi.NewDevicePluginClient(conn), options: r.Options, used: map[string]bool{}, end: end, ended: make(chan struct{})}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	options, err := p.client.GetDevicePluginOptions(call, &pluginapi.Empty{})
	if err == nil && !proto.Equal(options, r.Options) {
		err = fmt.Errorf("the plugin has the options %v and registers with %v", options, r.Options)
	}
	var stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]
	if err == nil {
		stream, err = p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	}
	if err != nil {
		end()
		conn.Close()
		return nil, err
	}
	go k.follow(p, stream)
	return p, nil
}

// follow receives the lists of a plugin's devices. When the plugin ends, its devices are unhealthy.
func (k *Kubelet) follow(p *plugin, stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]) {
	defer close(p.ended)
	for {
		list, err := stream.Recv()
		devices := map[string]string{}
		if err == nil {
			for _, d := range list.Devices {
				if _, twice := devices[d.ID]; twice || d.ID == "" || len(d.ID) > 63 || d.Health != pluginapi.Healthy && d.Health != pluginapi.Unhealthy {
					k.t.Errorf("a plugin lists the device %v; twice: %v", d, twice)
				}
				devices[d.ID] = d.Health
			}
		}
		k.mu.Lock()
		if err != nil {
			for id := range p.devices {
				devices[id] = pluginapi.Unhealthy
			}
		}
		p.devices = devices
		k.changed()
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits until ok, which is called with the lock held.
func (k *Kubelet) await(what string, ok func() bool) {
	k.t.Helper()
	late := time.After(limit)
	for {
		k.mu.Lock()
		done, news := ok(), k.news
		k.mu.Unlock()
		if done {
			return
		}
		select {
		case <-news:
		case <-late:
			k.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// AwaitRegistrations waits until there were n registrations since New.
func (k *Kubelet) AwaitRegistrations(n int) {
	k.t.Helper()
	k.await(fmt.Sprint(n, " registrations"), func() bool { return k.count >= n })
}

// AwaitDevices waits until a resource has exactly these numbers of devices.
func (k *Kubelet) AwaitDevices(resource string, healthy, unhealthy int) {
	k.t.Helper()
	var have [2]int
	k.await(fmt.Sprintf("%d healthy and %d unhealthy devices of %s (last: %v)", healthy, unhealthy, resource, &have), func() bool {
		p := k.plugins[resource]
		if p == nil || p.devices == nil {
			return false
		}
		have = [2]int{}
		for _, h := range p.devices {
			if h == pluginapi.Healthy {
				have[0]++
			} else {
				have[1]++
			}
		}
		return have == [2]int{healthy, unhealthy}
	})
}

// Healthy returns the healthy devices of a resource that no container has.
func (k *Kubelet) Healthy(resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []string
	if p := k.plugins[resource]; p != nil {
		for _, id := range slices.Sorted(maps.Keys(p.devices)) {
			if p.devices[id] == pluginapi.Healthy && !p.used[id] {
				list = append(list, id)
			}
		}
	}
	return list
}

// Client returns the API of the plugin of a resource, for calls that a kubelet would not make.
func (k *Kubelet) Client(resource string) pluginapi.DevicePluginClient {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.plugins[resource]
	if p == nil {
		k.t.Fatalf("resource %s is not registered", resource)
	}
	return p.client
}

// A Container is what the plugin gives to a container.
type Container struct {
	Devices  []string // of the kubelet
	Response *pluginapi.ContainerAllocateResponse
}

// Allocate chooses n devices of a resource for a container, as the plugin prefers it.
func (k *Kubelet) Allocate(resource string, n int) Container {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	available, client := k.Healthy(resource), k.Client(resource)
	if len(available) < n {
		k.t.Fatalf("resource %s has %d healthy devices, %d are requested", resource, len(available), n)
	}
	preferred, err := client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: available, AllocationSize: int32(n)},
	}})
	if err != nil || len(preferred.ContainerResponses) != 1 {
		k.t.Fatalf("GetPreferredAllocation: %v, %v", preferred, err)
	}
	ids := preferred.ContainerResponses[0].DeviceIDs
	different := map[string]bool{}
	for _, id := range ids {
		different[id] = true
		if !slices.Contains(available, id) {
			k.t.Fatalf("the plugin prefers the device %s, which is not available", id)
		}
	}
	if len(different) != n || len(ids) != n {
		k.t.Fatalf("the plugin prefers %v, of which there should be %d", ids, n)
	}
	reply, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil || len(reply.ContainerResponses) != 1 {
		k.t.Fatalf("Allocate: %v, %v", reply, err)
	}
	k.mu.Lock()
	for _, id := range ids {
		k.plugins[resource].used[id] = true
	}
	k.mu.Unlock()
	c := Container{Devices: ids, Response: reply.ContainerResponses[0]}
	k.checkContainer(c.Response)
	return c
}

// checkContainer checks what the kubelet and the runtime do with a reply.
func (k *Kubelet) checkContainer(r *pluginapi.ContainerAllocateResponse) {
	k.t.Helper()
	for name := range r.Envs {
		if problems := validation.IsEnvVarName(name); len(problems) > 0 {
			k.t.Errorf("variable %q: %v", name, problems)
		}
	}
	targets := map[string]bool{}
	for _, m := range r.Mounts {
		if !filepath.IsAbs(m.ContainerPath) || !filepath.IsAbs(m.HostPath) || targets[m.ContainerPath] {
			k.t.Errorf("mount %v: paths must be absolute, and the target not taken", m)
		}
		targets[m.ContainerPath] = true
		if _, err := os.Stat(m.HostPath); err != nil {
			k.t.Errorf("mount %v: %v", m, err)
		}
	}
	if len(r.Devices) > 0 {
		k.t.Errorf("there are device files: %v", r.Devices)
	}
	cache := k.Runtime()
	for _, d := range r.CdiDevices {
		if cache.GetDevice(d.Name) == nil {
			k.t.Errorf("no specification in %s has the CDI device %s (has %v)", k.cdiDir, d.Name, cache.ListDevices())
		}
	}
}

// Runtime returns the CDI specifications as the container runtime has them.
func (k *Kubelet) Runtime() *cdi.Cache {
	k.t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(k.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		k.t.Fatal(err)
	}
	for file, errs := range cache.GetErrors() {
		k.t.Errorf("%s: %v", file, errs)
	}
	return cache
}
