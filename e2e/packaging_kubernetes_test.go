package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"softroce/e2e/harness"
	"softroce/internal/deviceplugin/kubelettest"
)

// A pod is a container that the kubelet and the runtime would start: its root has the system's
// programs and what the device plugin injects.
type pod struct {
	namespace string
	uid       uint32
	container kubelettest.Container
}

// command returns the command that runs a program in the pod with runc.
func (p pod) command(t *testing.T, ctx context.Context, k *kubelettest.Kubelet, argv ...string) *exec.Cmd {
	t.Helper()
	bundle := t.TempDir()
	if err := os.Chmod(bundle, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"rootfs/usr", "rootfs/tmp", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(bundle, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(bundle, "rootfs", dir)); err != nil {
			t.Fatal(err)
		}
	}
	spec := &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			User: specs.User{UID: p.uid, GID: p.uid}, Args: argv, Cwd: "/", NoNewPrivileges: true, Env: []string{"PATH=/usr/bin:/bin"},
		},
		Root: &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/etc", Type: "bind", Source: "/etc", Options: []string{"rbind", "ro"}},
			// The image does not have the directory of the libraries.
			{Destination: "/usr", Type: "overlay", Source: "overlay", Options: []string{
				"lowerdir=/usr", "upperdir=" + filepath.Join(bundle, "upper"), "workdir=" + filepath.Join(bundle, "work"),
			}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}}},
	}
	for name, value := range p.container.Response.Envs {
		spec.Process.Env = append(spec.Process.Env, name+"="+value)
	}
	for _, d := range p.container.Response.CdiDevices {
		if _, err := k.Runtime().InjectDevices(spec, d.Name); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := filepath.Base(filepath.Dir(bundle)) + filepath.Base(bundle)
	t.Cleanup(func() { exec.Command("runc", "delete", "--force", id).Run() })
	// Not ip netns exec, which hides the control groups that runc needs.
	return exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+p.namespace, "runc", "run", "--bundle", bundle, id)
}

// TestPodsCommunicate runs unmodified programs in two containers, as different users, with what the
// device plugin gives them, before and after a restart of the daemon.
func TestPodsCommunicate(t *testing.T) {
	harness.NeedRoot(t, "namespaces and users")
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("runc is not installed")
	}
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	bin := harness.Binary(t)
	libraries := harness.Libraries(t)
	ns := harness.Namespace(t, "pods")
	dir := harness.ShortDir(t)
	for _, d := range []string{"kubelet", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config, socket := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "run", "s")
	if err := os.WriteFile(config, []byte("socket-mode: 0666\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	start := func() *harness.Daemon {
		return harness.StartDaemon(t, harness.InNamespace(ns), "--socket", socket, "--config", config)
	}
	d := start()
	k := kubelettest.New(t, filepath.Join(dir, "kubelet"), filepath.Join(dir, "cdi"))
	ctx, cancel := context.WithCancel(t.Context())
	plugin := exec.CommandContext(ctx, bin, "device-plugin", "--socket", socket, "--shares", "2",
		"--kubelet-dir", filepath.Join(dir, "kubelet"), "--cdi-dir", filepath.Join(dir, "cdi"), "--libraries", filepath.Join(dir, "lib"))
	plugin.Env = append(os.Environ(), "SOFTROCE_LIBDIR="+libraries)
	plugin.Cancel = func() error { return plugin.Process.Signal(os.Interrupt) }
	job := harness.StartJob(t, plugin)
	t.Cleanup(func() {
		cancel()
		if out, err := job.Wait(); t.Failed() {
			t.Logf("device-plugin: %v\n%s", err, out)
		}
	})
	k.AwaitDevices("softroce.io/nic", 4, 0)
	server, client := pod{ns, 12345, k.Allocate("softroce.io/nic", 1)}, pod{ns, 12346, k.Allocate("softroce.io/nic", 1)}
	if a, b := server.container.Response.Envs["SOFTROCE_DEVICE"], client.container.Response.Envs["SOFTROCE_DEVICE"]; a == b {
		t.Errorf("both pods have %s", a)
	}
	for _, name := range []string{"first daemon", "next daemon"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			port := harness.FreePort()
			program := []string{"ibv_rc_pingpong", "-g", "1", "-c", "-n", "200", "-p", fmt.Sprint(port)}
			x := harness.OnDaemon(ns, socket, harness.Endpoint{}) // for WaitListening only
			serving := harness.StartJob(t, server.command(t, ctx, k, program...))
			if err := x.WaitListening(ctx, serving, port); err != nil {
				cancel()
				out, _ := serving.Wait()
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := harness.StartJob(t, client.command(t, ctx, k, append(program, "localhost")...)).Wait()
			if err != nil {
				cancel()
			}
			served, serverErr := serving.Wait()
			if err != nil || serverErr != nil || errorOutput.MatchString(out+served) {
				t.Errorf("client: %v\n%s\nserver: %v\n%s", err, out, serverErr, served)
			}
		})
		d.Stop(t)
		k.AwaitDevices("softroce.io/nic", 0, 4)
		d = start()
		k.AwaitDevices("softroce.io/nic", 4, 0)
	}
}
