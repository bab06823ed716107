package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"softroce/e2e/harness"
	"strings"
	"testing"
)

// containerScript runs a command in new user, mount and PID namespaces. Its root contains the
// system's programs, softroce and the daemon's socket, and nothing else.
//
//	container BINARY SOCKET COMMAND…
const containerScript = `set -e
bin=$1 socket=$2
shift 2
mount -t tmpfs none /mnt
cd /mnt
mkdir usr proc dev etc tmp sock
for l in bin sbin lib lib64; do ln -s usr/$l $l; done
mount --rbind /usr usr
mount --rbind /etc etc
mount -t proc none proc
touch dev/null softroce sock/s
mount --bind /dev/null dev/null
mount --bind "$bin" softroce
mount --bind "$socket" sock/s
exec env -i PATH=/bin:/sbin SOFTROCE_SOCKET=/sock/s chroot . "$@"`

func containerCommand(ctx context.Context, namespace string, uid int, bin, socket string, argv ...string) *exec.Cmd {
	who := fmt.Sprint(uid)
	args := []string{
		"netns", "exec", namespace, "setpriv", "--reuid", who, "--regid", who, "--clear-groups",
		"unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", containerScript, "container", bin, socket,
	}
	return exec.CommandContext(ctx, "ip", append(args, argv...)...)
}

// TestClientsInContainersOfOtherUsers connects programs of two users, neither of which shares more
// than the socket with the daemon.
func TestClientsInContainersOfOtherUsers(t *testing.T) {
	harness.NeedRoot(t, "namespaces and users")
	harness.LocalPrograms.Acquire(t)
	bin := harness.Binary(t)
	ns := harness.Namespace(t, "container")
	socket := publicDaemon(t, ns, "0666")
	for _, c := range []string{
		"ibv_rc_pingpong -g 1 -c -n 200 -s 20000", "ibv_ud_pingpong -g 1 -c -n 200 -s 1000 -e",
		"ib_write_bw -x 1 -F -n 20", "ib_read_bw -x 1 -F -n 20", "ib_send_bw -x 1 -F -n 20", "ib_atomic_bw -x 1 -F -n 20",
	} {
		t.Run(strings.Fields(c)[0], func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			port := harness.FreePort()
			run := append([]string{"/softroce", "run", "-q", "--"}, strings.Fields(c)...)
			x := harness.OnDaemon(ns, socket, harness.Endpoint{}) // for WaitListening only
			server := harness.StartJob(t, containerCommand(ctx, ns, 12345, bin, socket, append(run, "-d", "softroce1", "-p", fmt.Sprint(port))...))
			if err := x.WaitListening(ctx, server, port); err != nil {
				cancel()
				out, _ := server.Wait()
				t.Fatalf("%v\n%s", err, out)
			}
			client := harness.StartJob(t, containerCommand(ctx, ns, 12346, bin, socket, append(run, "-d", "softroce0", "-p", fmt.Sprint(port), "localhost")...))
			out, err := client.Wait()
			if err != nil {
				cancel()
			}
			served, serverErr := server.Wait()
			if err != nil || serverErr != nil || errorOutput.MatchString(out+served) {
				t.Errorf("client: %v\n%s\nserver: %v\n%s", err, out, serverErr, served)
			}
		})
	}
}

// publicDaemon starts a daemon whose socket has this mode in a directory that all users can access.
func publicDaemon(t *testing.T, ns, mode string) (socket string) {
	t.Helper()
	dir := harness.ShortDir(t)
	config := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(config, []byte("socket-mode: "+mode+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(harness.WorkDir(), 0o755); err != nil { // it contains the binary
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	harness.OpenNIC(t, harness.StartDaemon(t, harness.InNamespace(ns), "--socket", socket, "--config", config), socket).Close()
	return socket
}

// TestForbiddenClientsGetEACCES denies access to a user through the mode of the socket.
func TestForbiddenClientsGetEACCES(t *testing.T) {
	harness.NeedRoot(t, "namespaces and users")
	harness.LocalPrograms.Acquire(t)
	bin := harness.Binary(t)
	ns := harness.Namespace(t, "barred")
	socket := publicDaemon(t, ns, "0660")
	for _, command := range [][]string{
		{"/softroce", "show", "devices"},
		{"/softroce", "run", "--", "true"},
		{"/softroce", "perf", "write"},
	} {
		out, err := containerCommand(t.Context(), ns, 12345, bin, socket, command...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "permission denied") {
			t.Errorf("%v: %v\n%s", command, err, out)
		}
	}
	// The library reports it too if softroce run has not checked before.
	unpacked := filepath.Join(filepath.Dir(bin), "libraries")
	cmd := exec.Command(bin, "run", "-q", "--socket", socket, "--", "sh", "-c", "cp -rL $LD_LIBRARY_PATH "+unpacked)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { os.RemoveAll(unpacked) })
	cmd = exec.Command("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "env", "-C", "/",
		"LD_LIBRARY_PATH="+unpacked, "SOFTROCE_SOCKET="+socket, "ibv_devinfo")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
		t.Errorf("ibv_devinfo: %v\n%s", err, out)
	}
}
