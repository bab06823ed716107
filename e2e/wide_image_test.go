//go:build wide

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// imageLimit is how long a container of this test may run.
const imageLimit = time.Minute

// A podman runs containers without registries, and with images of its own.
type podman struct{ flags []string }

func newPodman(t *testing.T) *podman {
	dir := harness.ShortDir(t)
	p := &podman{[]string{"--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay",
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--events-backend", "file"}}
	t.Cleanup(func() {
		p.clean(t, "rm", "--all", "--force", "--time", "0")
		syscall.Unmount(filepath.Join(dir, "root/overlay"), 0)
	})
	return p
}

// clean runs a command of podman at the end of a test.
func (p *podman) clean(t *testing.T, args ...string) {
	if out, err := exec.Command("podman", append(p.flags, args...)...).CombinedOutput(); err != nil {
		t.Errorf("podman %v: %v\n%s", args, err, out)
	}
}

// run returns the arguments of podman run with flags. Limits higher than those of this process may
// not be permitted.
func (p *podman) run(more ...string) []string {
	return append(append([]string{}, p.flags...), append([]string{"run", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=512:512"}, more...)...)
}

// command runs a container to its end.
func (p *podman) command(t *testing.T, more ...string) (out, errs string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), imageLimit)
	defer cancel()
	var o, e bytes.Buffer
	cmd := exec.CommandContext(ctx, "podman", p.run(append([]string{"--rm"}, more...)...)...)
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// composePodman runs the podman commands of podman-compose. It starts containers as podman.run
// does, and without the network of the project, for which this machine may lack the plugins.
const composePodman = `#!/bin/sh
if [ "$1" = run ]; then
    shift
    n=$#
    while [ $n -gt 0 ]; do
        case $1 in
        --net | --network-alias) shift 2; n=$((n - 2)) ;;
        *) set -- "$@" "$1"; shift; n=$((n - 1)) ;;
        esac
    done
    exec podman %s "$@"
fi
exec podman %s "$@"
`

// TestWideImages builds the images, and follows the recipes of docs/use/containers.md with them.
func TestWideImages(t *testing.T) {
	needWide(t, "podman", "podman-compose", "buildah", "mmdebstrap", "runc")
	harness.RunCommand(t, "make", "-C", "..", "deb")
	harness.RunCommand(t, "../scripts/image")
	p := newPodman(t)
	for _, name := range []string{"softroce", "softroce-daemon"} {
		file := "../dist/" + name + "-image.tar"
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d MiB", name, info.Size()>>20)
		harness.RunCommand(t, "podman", append(p.flags, "load", "-i", file)...)
	}
	volume := func(t *testing.T) string {
		dir := filepath.Join(harness.ShortDir(t), "v")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	daemon := func(t *testing.T, dir string) {
		harness.RunCommand(t, "podman", p.run("--detach", "--rm", "--name", "nics", "-v", dir+":/run/softroce", "localhost/softroce-daemon")...)
		t.Cleanup(func() { p.clean(t, "stop", "nics") })
		for limit := time.Now().Add(harness.StartLimit); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "softroce.sock")); err == nil {
				return
			}
			if time.Now().After(limit) {
				t.Fatal("the daemon does not start")
			}
		}
	}
	bandwidth := []string{"softroce", "run", "--", "sh", "-c", "ib_write_bw -n 100 & sleep 1; ib_write_bw -n 100 localhost"}

	t.Run("one container", func(t *testing.T) {
		for _, user := range []string{"0", "12345"} {
			out, errs, err := p.command(t, append([]string{"--user", user, "--cap-drop", "all", "localhost/softroce"}, bandwidth...)...)
			if err != nil || !strings.Contains(out, " 65536      100 ") {
				t.Errorf("as user %s: %v\n%s%s", user, err, out, errs)
			}
		}
	})

	t.Run("two containers and a daemon", func(t *testing.T) {
		dir := volume(t)
		daemon(t, dir)
		client := []string{"-v", dir + ":/run/softroce", "localhost/softroce", "softroce", "run", "--", "rping", "-a", "192.0.2.2", "-C", "10", "-v"}
		ctx, cancel := context.WithTimeout(t.Context(), imageLimit)
		defer cancel()
		server := harness.StartJob(t, exec.CommandContext(ctx, "podman", p.run(append([]string{"--rm"}, append(client, "-s")...)...)...))
		for { // until the server listens
			out, errs, err := p.command(t, append(client, "-c")...)
			if err == nil && strings.Count(out, "ping data: rdma-ping-") == 10 {
				break
			}
			if ctx.Err() != nil || !server.Running() {
				t.Errorf("client: %v\n%s%s", err, out, errs)
				break
			}
		}
		if out, err := server.Wait(); err != nil || strings.Count(out, "server ping data: rdma-ping-") != 10 {
			t.Errorf("server: %v\n%s", err, out)
		}
	})

	t.Run("a test suite and a daemon", func(t *testing.T) {
		dir := volume(t)
		daemon(t, dir)
		out, errs, err := p.command(t, append([]string{"-v", dir + ":/run/softroce", "-e", "SOFTROCE_SOCKET=/run/softroce/softroce.sock", "localhost/softroce"}, bandwidth...)...)
		if err != nil || !strings.Contains(out, " 65536      100 ") || !strings.Contains(errs, "uses the daemon on /run/softroce/softroce.sock") {
			t.Errorf("%v\n%s%s", err, out, errs)
		}
	})

	t.Run("compose", func(t *testing.T) {
		script := filepath.Join(harness.ShortDir(t), "podman")
		text := fmt.Sprintf(composePodman, strings.Join(p.run(), " "), strings.Join(p.flags, " "))
		if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		compose := func(args ...string) (string, error) {
			ctx, cancel := context.WithTimeout(t.Context(), imageLimit)
			defer cancel()
			out, err := exec.CommandContext(ctx, "podman-compose", append([]string{"--podman-path", script, "-f", "../packaging/compose.yaml"}, args...)...).CombinedOutput()
			return string(out), err
		}
		up, err := compose("up", "--detach")
		defer compose("down", "--volumes", "--timeout", "1")
		if err != nil {
			t.Fatalf("up: %v\n%s", err, up)
		}
		for _, name := range []string{"server", "client"} {
			status := strings.TrimSpace(harness.RunCommand(t, "timeout", append([]string{"60", "podman"}, append(p.flags, "wait", "packaging_"+name+"_1")...)...))
			out := harness.RunCommand(t, "podman", append(p.flags, "logs", "packaging_"+name+"_1")...)
			if status != "0" || !strings.Contains(out, "ping data: rdma-ping-9") {
				t.Errorf("%s: status %s\n%s\n%s", name, status, out, up)
			}
		}
	})

	t.Run("missing rights", func(t *testing.T) {
		for _, c := range []struct {
			want string
			args []string
		}{
			{"softroce: NIC r: packet link on lo: socket: the packet link requires CAP_NET_RAW (the udp link requires no privilege): operation not permitted\n",
				[]string{"--user", "12345", "localhost/softroce-daemon", "daemon", "--nic", "r=packet:lo"}},
			{"softroce: cannot create the socket /run/softroce/softroce.sock: read-only file system; ",
				[]string{"--user", "12345", "--read-only", "--read-only-tmpfs=false", "localhost/softroce-daemon", "daemon", "--socket", "/run/softroce/softroce.sock"}},
		} {
			out, errs, err := p.command(t, c.args...)
			if err == nil || out != "" || !strings.HasPrefix(errs, c.want) || strings.Count(errs, "\n") != 1 {
				t.Errorf("%v: %v\n%s%s", c.args, err, out, errs)
			}
		}
	})
}
