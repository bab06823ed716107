package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A registrar keeps the resources registered with the kubelet. A kubelet that starts removes the
// sockets of all plugins, and then creates its own.
type registrar struct {
	dir     string
	servers []*server
	log     *logger

	registered fs.FileInfo // the socket of the kubelet that knows the resources; nil: none does
}

const (
	// registerTimeout is how long a kubelet may take to answer.
	registerTimeout = 10 * time.Second

	// lookInterval is the time after which the directory is looked at without a notification.
	lookInterval = 10 * time.Second
)

// run serves and registers the resources until ctx ends.
func (r *registrar) run(ctx context.Context) error {
	// Notifications only say when to look: what counts is what is there then.
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer notify.Close()
	if err := notify.Add(r.dir); err != nil {
		return fmt.Errorf("the kubelet's directory %s: %w", r.dir, errors.Unwrap(err))
	}
	defer func() {
		for _, s := range r.servers {
			s.close()
		}
	}()
	for {
		if err := r.look(ctx); err != nil {
			return err
		}
		wait := lookInterval
		if r.registered == nil {
			wait = retryPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-notify.Events:
		case <-notify.Errors: // lost notifications
		case <-time.After(wait):
		}
	}
}

// look serves what is not served, and registers with a kubelet that does not know the resources.
func (r *registrar) look(ctx context.Context) error {
	kubelet := filepath.Join(r.dir, filepath.Base(pluginapi.KubeletSocket))
	now, err := os.Stat(kubelet)
	if r.registered != nil && (err != nil || !sameFile(now, r.registered)) {
		r.registered = nil
		r.log.note("the kubelet is gone or has restarted")
	}
	for _, s := range r.servers {
		if s.present() {
			continue
		}
		s.close()
		if err := s.listen(); err != nil {
			return fmt.Errorf("resource %s: %w", s.resource.Name, err)
		}
		r.registered = nil
	}
	if r.registered != nil {
		return nil
	}
	if err != nil {
		r.log.once("kubelet", "waits for the kubelet: %v", err)
		return nil
	}
	for _, s := range r.servers {
		if err := r.register(ctx, kubelet, s); err != nil {
			if ctx.Err() == nil {
				r.log.once("kubelet", "the kubelet does not register %s: %s", s.resource.Name, status.Convert(err).Message())
			}
			return nil
		}
	}
	r.log.clear("kubelet")
	r.registered = now
	return nil
}

func (r *registrar) register(ctx context.Context, kubelet string, s *server) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(s.path), ResourceName: s.resource.Name, Options: s.options(),
	})
	if err == nil {
		all, _ := s.watcher.state()
		n := len(s.offered(all))
		r.log.note("resource %s: registered with the kubelet, %d NICs with %d shares each", s.resource.Name, n, s.shares)
	}
	return err
}
