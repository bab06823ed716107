package deviceplugin

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A server serves the device plugin API for one resource.
type server struct {
	pluginapi.UnimplementedDevicePluginServer

	resource  Resource
	all       []Resource
	shares    int
	watcher   *watcher
	injection *injection

	path string // of the socket
	grpc *grpc.Server
	made os.FileInfo // the socket file
}

// listen starts to serve on the resource's socket in the kubelet's directory.
func (s *server) listen() error {
	// The kubelet never listens here, so a process that accepts is another plugin.
	if c, err := net.Dial("unix", s.path); err == nil {
		c.Close()
		return fmt.Errorf("another device plugin serves %s on %s", s.resource.Name, s.path)
	}
	if err := os.Remove(s.path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		return err
	}
	if s.made, err = os.Lstat(s.path); err != nil {
		l.Close()
		return err
	}
	s.grpc = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s.grpc, s)
	go s.grpc.Serve(l)
	return nil
}

// close stops serving and removes the socket.
func (s *server) close() {
	if s.grpc == nil {
		return
	}
	s.grpc.Stop()
	s.grpc = nil
}

// present reports whether the socket is still in the kubelet's directory.
func (s *server) present() bool {
	is, err := os.Lstat(s.path)
	return err == nil && s.grpc != nil && sameFile(is, s.made)
}

// sameFile reports whether two files are the same, and not one after the other with the same inode.
func sameFile(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

func (s *server) options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return s.options(), nil
}

// offered returns the NICs of the resource that can be offered.
func (s *server) offered(nics []nic) []nic {
	return slices.DeleteFunc(s.resource.choose(s.all, nics), func(n nic) bool { return checkName(n.name, s.shares) != nil })
}

// ListAndWatch sends the devices of the resource, and again after each change.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var sent []nic
	for first := true; ; first = false {
		all, news := s.watcher.state()
		if nics := s.offered(all); first || !slices.Equal(nics, sent) {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: s.devices(nics)}); err != nil {
				return err
			}
			sent = nics
		}
		select {
		case <-news:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *server) devices(nics []nic) (list []*pluginapi.Device) {
	for _, n := range nics {
		health := pluginapi.Unhealthy
		if n.up {
			health = pluginapi.Healthy
		}
		for i := range s.shares {
			list = append(list, &pluginapi.Device{ID: deviceID(n.name, i), Health: health})
		}
	}
	return list
}

// owners returns the NIC that each device is a share of.
func (s *server) owners() map[string]string {
	all, _ := s.watcher.state()
	owners := map[string]string{}
	for _, n := range s.offered(all) {
		for i := range s.shares {
			owners[deviceID(n.name, i)] = n.name
		}
	}
	return owners
}

// checkIDs returns an error unless the devices exist and differ.
func (s *server) checkIDs(ids []string, owners map[string]string) error {
	seen := map[string]bool{}
	for _, id := range ids {
		if owners[id] == "" {
			return status.Errorf(codes.InvalidArgument, "resource %s has no device %q", s.resource.Name, id)
		}
		if seen[id] {
			return status.Errorf(codes.InvalidArgument, "device %s is requested twice", id)
		}
		seen[id] = true
	}
	return nil
}

// Allocate says what the containers need for their devices. A container with several shares of a
// NIC sees it once. The order of the NICs is that of the resource, whatever that of the devices is.
func (s *server) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	owners := s.owners()
	all, _ := s.watcher.state()
	reply := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		if len(c.GetDevicesIds()) == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "a container requests no device of %s", s.resource.Name)
		}
		if err := s.checkIDs(c.DevicesIds, owners); err != nil {
			return nil, err
		}
		var nics []string
		for _, n := range s.offered(all) {
			if slices.ContainsFunc(c.DevicesIds, func(id string) bool { return owners[id] == n.name }) {
				nics = append(nics, n.name)
			}
		}
		reply.ContainerResponses = append(reply.ContainerResponses, s.injection.response(nics))
	}
	return reply, nil
}

// GetPreferredAllocation spreads the devices of a container over NICs, since two shares of one NIC
// give it no more than one. Among equal NICs it prefers those with the most shares left.
func (s *server) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	owners := s.owners()
	reply := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		if err := s.checkIDs(c.GetAvailableDeviceIDs(), owners); err != nil {
			return nil, err
		}
		if err := s.checkIDs(c.GetMustIncludeDeviceIDs(), owners); err != nil {
			return nil, err
		}
		size := int(c.GetAllocationSize())
		if size < len(c.GetMustIncludeDeviceIDs()) || size > len(c.GetAvailableDeviceIDs()) {
			return nil, status.Errorf(codes.InvalidArgument, "%d devices are requested, of %d, and %d of them are given",
				size, len(c.GetAvailableDeviceIDs()), len(c.GetMustIncludeDeviceIDs()))
		}
		for _, id := range c.GetMustIncludeDeviceIDs() {
			if !slices.Contains(c.GetAvailableDeviceIDs(), id) {
				return nil, status.Errorf(codes.InvalidArgument, "device %s must be included, but is not available", id)
			}
		}
		all, _ := s.watcher.state()
		ids := spread(s.offered(all), owners, c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), size)
		reply.ContainerResponses = append(reply.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return reply, nil
}

// spread adds available devices to chosen until there are size.
func spread(nics []nic, owners map[string]string, available, chosen []string, size int) []string {
	chosen = slices.Clone(chosen)
	free, taken := map[string][]string{}, map[string]int{}
	for _, id := range chosen {
		taken[owners[id]]++
	}
	for _, id := range available {
		if !slices.Contains(chosen, id) {
			free[owners[id]] = append(free[owners[id]], id)
		}
	}
	for len(chosen) < size {
		best := ""
		for _, n := range nics {
			if len(free[n.name]) == 0 {
				continue
			}
			if best == "" || taken[n.name] < taken[best] || taken[n.name] == taken[best] && len(free[n.name]) > len(free[best]) {
				best = n.name
			}
		}
		chosen = append(chosen, free[best][0])
		free[best] = free[best][1:]
		taken[best]++
	}
	return chosen
}
