//go:build wide

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// TestWideArchitecturesPingPong connects a daemon for arm64, which qemu-user runs, with one for
// this machine, and verifies the data of ping-pongs with either as the server.
func TestWideArchitecturesPingPong(t *testing.T) {
	needWide(t, "qemu-aarch64", "aarch64-linux-gnu-gcc")
	harness.RunCommand(t, "make", "-C", "..", "build", "GOARCH=arm64")
	dir := harness.ShortDir(t)
	emulated := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "qemu-aarch64", append([]string{"-L", "/usr/aarch64-linux-gnu", "../bin/arm64/softroce"}, argv[1:]...)...)
	}
	native := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, argv[0], argv[1:]...)
	}
	type end struct {
		command func(context.Context, ...string) *exec.Cmd
		socket  string
	}
	ends := [2]end{{native, filepath.Join(dir, "amd64")}, {emulated, filepath.Join(dir, "arm64")}}
	ports := [2]int{harness.FreePort(), harness.FreePort()}
	for i, e := range ends {
		nic := fmt.Sprintf("rdma%d=dgram:127.0.0.1:%d,127.0.0.1:%d,198.51.100.%d/24", i, ports[i], ports[1-i], 1+i)
		d := harness.StartDaemon(t, e.command, "--socket", e.socket, "--nic", nic)
		harness.OpenNIC(t, d, e.socket).Close()
	}
	for i := range ends {
		server, client := ends[i], ends[1-i]
		for _, size := range []string{"1", "100000"} {
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			port := harness.FreePort()
			pingpong := func(e end, more ...string) *harness.Job {
				return harness.StartJob(t, e.command(ctx, append([]string{harness.Binary(t), "pingpong", "--socket", e.socket,
					"-p", fmt.Sprint(port), "-c", "-n", "50", "-s", size}, more...)...))
			}
			serving := pingpong(server)
			// qemu-user opens the socket for its guest.
			if err := harness.OnDaemon("", server.socket, harness.Endpoint{}).WaitListening(ctx, serving, port); err != nil {
				cancel()
				out, _ := serving.Wait()
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := pingpong(client, "127.0.0.1").Wait()
			if err != nil {
				cancel()
			}
			served, serverErr := serving.Wait()
			if err != nil || serverErr != nil || !strings.Contains(out, "50 iters in") || !strings.Contains(served, "50 iters in") {
				t.Errorf("server %s, messages of %s bytes: client: %v\n%s\nserver: %v\n%s", server.socket, size, err, out, serverErr, served)
			}
		}
	}
}

// TestWideDebianPackageForARM64 builds the package with the cross compiler. All its programs are
// for arm64.
func TestWideDebianPackageForARM64(t *testing.T) {
	needWide(t, "qemu-aarch64", "aarch64-linux-gnu-gcc")
	harness.RunCommand(t, "make", "-C", "..", "deb", "GOARCH=arm64")
	debs, err := filepath.Glob("../dist/softroce_*_arm64.deb")
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages: %v, %v", debs, err)
	}
	root := t.TempDir()
	harness.RunCommand(t, "dpkg-deb", "--extract", debs[0], root)
	for _, file := range []string{"bin/softroce", "lib/softroce/libibverbs.so.1", "lib/softroce/librdmacm.so.1"} {
		header := harness.RunCommand(t, "readelf", "-h", filepath.Join(root, "usr", file))
		if !strings.Contains(header, "AArch64") {
			t.Errorf("%s is not for arm64:\n%s", file, header)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/lib/aarch64-linux-gnu/wireshark/extcap/softroce")); err != nil {
		t.Error(err)
	}
	if depends := harness.RunCommand(t, "dpkg-deb", "--field", debs[0], "Depends"); !strings.HasPrefix(depends, "libc6 (>= 2.") {
		t.Errorf("depends on %q", depends)
	}
	out := harness.RunCommand(t, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", filepath.Join(root, "usr/bin/softroce"), "version")
	if !strings.Contains(out, "softroce ") {
		t.Errorf("version: %s", out)
	}
}
