package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"softroce/internal/control"
)

// MaxShares bounds the shares of a NIC: the kubelet looks at each of them whenever one changes.
const MaxShares = 1000

// Options are those of softroce device-plugin.
type Options struct {
	Socket     string     // the daemon's, with the same path on the node
	Resources  []Resource // at least one
	Shares     int        // of each NIC: how many containers may have it
	KubeletDir string     // where the kubelet and its plugins have their sockets
	CDIDir     string     // where CDI specifications are written; empty: none is
	CDIKind    string     // VENDOR/CLASS
	LibraryDir string     // where containers find the C libraries on the node
	Libraries  fs.FS      // the C libraries, which are copied to LibraryDir

	Out, Err io.Writer
}

// check checks what can be checked without the daemon and the kubelet.
func (o *Options) check() (*injection, error) {
	if o.Shares < 1 || o.Shares > MaxShares {
		return nil, fmt.Errorf("%d shares of a NIC: want 1 to %d", o.Shares, MaxShares)
	}
	if err := checkResources(o.Resources); err != nil {
		return nil, err
	}
	for _, r := range o.Resources {
		if err := r.checkEndpoint(o.KubeletDir); err != nil {
			return nil, err
		}
		for _, n := range r.NICs {
			if err := checkName(n, o.Shares); err != nil {
				return nil, fmt.Errorf("resource %s: %w", r.Name, err)
			}
		}
	}
	if info, err := os.Stat(o.KubeletDir); err != nil {
		return nil, fmt.Errorf("the kubelet's directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("the kubelet's directory: %s is not a directory", o.KubeletDir)
	}
	return newInjection(o)
}

// Run offers the NICs until ctx ends.
func Run(ctx context.Context, o Options) error {
	o.Socket = control.Absolute(o.Socket)
	o.KubeletDir = control.Absolute(o.KubeletDir)
	in, err := o.check()
	if err != nil {
		return err
	}
	if err := in.installLibraries(o.Libraries); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	log := newLogger(o.Out, o.Err)
	w := newWatcher(o.Socket, log)
	first := make(chan error, 1)
	w.changed = func(before, now []nic) {
		err := o.examine(in, log, before, now)
		select {
		case first <- err:
		default:
			if err != nil {
				log.once("nics", "%v", err)
			}
		}
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.run(ctx)
	}()
	defer func() { <-watched }()
	defer cancel(nil)
	// The resources are registered when the daemon has said which NICs they have.
	select {
	case err = <-first:
	case <-ctx.Done():
		return nil
	}
	if err != nil {
		return err
	}
	r := &registrar{dir: o.KubeletDir, log: log}
	for _, res := range o.Resources {
		r.servers = append(r.servers, &server{
			resource: res, all: o.Resources, shares: o.Shares, watcher: w, injection: in, path: filepath.Join(o.KubeletDir, res.endpoint()),
		})
	}
	return r.run(ctx)
}

// examine writes the CDI specification of NICs that are new, reports those that have changed, and
// returns an error if resources name NICs that the daemon does not have.
func (o *Options) examine(in *injection, log *logger, before, now []nic) error {
	var names, fit []string
	var offered []nic
	for _, n := range now {
		names = append(names, n.name)
		if err := checkName(n.name, o.Shares); err != nil {
			log.once("name of "+n.name, "%v; it is not offered", err)
			continue
		}
		fit = append(fit, n.name)
		offered = append(offered, n)
	}
	for _, n := range now {
		i := slices.IndexFunc(before, func(b nic) bool { return b.name == n.name })
		if i >= 0 && before[i].up == n.up {
			continue
		}
		state := "is not active"
		if n.up {
			state = "is active"
		}
		log.note("NIC %s %s", n.name, state)
	}
	var errs []error
	for _, r := range o.Resources {
		for _, n := range r.NICs {
			if !slices.Contains(names, n) {
				errs = append(errs, fmt.Errorf("resource %s: the daemon has no NIC %s (have: %s)", r.Name, n, strings.Join(fit, ", ")))
			}
		}
	}
	if !slices.EqualFunc(before, now, func(a, b nic) bool { return a.name == b.name }) {
		errs = append(errs, in.writeSpec(offered))
	}
	return errors.Join(errs...)
}
