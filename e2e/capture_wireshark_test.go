package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"softroce/e2e/harness"
)

// wiresharkUser is not root, whose Wireshark ignores WIRESHARK_EXTCAP_DIR.
const wiresharkUser = 12345

// TestWiresharkCapturesFromNICs runs Debian's tshark and tcpdump as a user who has installed the
// extcap program, and owns a daemon whose NICs exchange packets all the time.
func TestWiresharkCapturesFromNICs(t *testing.T) {
	harness.NeedRoot(t, "another user")
	for _, program := range []string{"tshark", "tcpdump"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	bin, dir := harness.Binary(t), harness.ShortDir(t)
	for _, path := range []string{dir, filepath.Dir(bin), harness.WorkDir()} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	home := filepath.Join(dir, "home")
	if err := errors.Join(os.Mkdir(home, 0o755), os.Chown(home, wiresharkUser, wiresharkUser)); err != nil {
		t.Fatal(err)
	}
	socket, extcap := filepath.Join(home, "s"), filepath.Join(home, "extcap")
	as := func(ctx context.Context, argv ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = home, append(os.Environ(), "HOME="+home, "SOFTROCE_SOCKET="+socket, "WIRESHARK_EXTCAP_DIR="+extcap)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: wiresharkUser, Gid: wiresharkUser}}
		return cmd
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	// run returns standard output and standard error.
	run := func(argv ...string) (string, string) {
		var out, errs bytes.Buffer
		cmd := as(ctx, argv...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && ctx.Err() != nil {
			t.Fatalf("%v: %v\n%s%s", argv, err, &out, &errs)
		}
		return out.String(), errs.String()
	}
	contains := func(what, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %q is missing in\n%s", what, w, text)
			}
		}
	}

	out, errs := run(bin, "install-extcap")
	contains("install-extcap", out+errs, "installed "+extcap+"/softroce;")
	out, _ = run("tshark", "-D")
	contains("list without a daemon", out, "softroce (softroce: all NICs (no daemon))\n")
	_, errs = run("tshark", "-i", "softroce")
	contains("capture without a daemon", errs, "softroce: no softroce daemon on "+socket+": no such file or directory\n")

	d := harness.StartDaemon(t, as, "--socket", socket)
	harness.OpenNIC(t, d, socket).Close()
	run(bin, "fault", "add", "set pkey 0x1234 every 50 kind write")
	traffic, stop := context.WithCancel(ctx)
	perf := harness.StartJob(t, as(traffic, bin, "perf", "write", "--size", "5000", "--qps", "2", "--depth", "2", "--latency", "0", "--duration", "1h"))
	defer func() {
		stop()
		perf.Wait()
	}()
	numbers := map[string]uint32{} // of the first queue pair on each NIC
	for len(numbers) < 2 {
		out, _ := run(bin, "show", "qp", "--json")
		var list []struct {
			NIC string `json:"ifname"`
			QPN uint32 `json:"lqpn"`
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("show qp: %v in %s", err, out)
		}
		for _, q := range slices.Backward(list) {
			if q.QPN > 1 {
				numbers[q.NIC] = q.QPN
			}
		}
		if !perf.Running() {
			out, err := perf.Wait()
			t.Fatalf("perf: %v\n%s", err, out)
		}
	}

	out, _ = run("tshark", "-D")
	contains("list", out, "softroce (softroce: all NICs)\n", "softroce0 (softroce: RDMA NIC softroce0)\n", "softroce1 (softroce: RDMA NIC softroce1)\n")
	_, errs = run("tshark", "-i", "softroce0", "-f", "kinnd ack")
	contains("wrong filter", errs, `softroce: filter: "kinnd": is not a condition of a filter; did you mean "kind"?`)
	_, errs = run("tshark", "-i", "softroce0", "-o", "extcap.softroce0.qp:0")
	contains("wrong queue pair", errs, `softroce: queue pair "0": want a number such as 17 or 0x11`)

	own := numbers["softroce0"]
	tshark := func(args ...string) (string, string) {
		return run(append([]string{"tshark", "-T", "fields", "-e", "ip.src", "-e", "infiniband.bth.destqp", "-c", "300"}, args...)...)
	}
	out, errs = tshark("-i", "softroce0", "-o", fmt.Sprintf("extcap.softroce0.qp:%d", own))
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		seen[strings.TrimSpace(line)] = true
	}
	want := []string{fmt.Sprintf("192.0.2.1\t0x%06x", numbers["softroce1"]), fmt.Sprintf("192.0.2.2\t0x%06x", own)}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("packets of queue pair %#x are from and to %q, want %q\n%s", own, got, want, errs)
	}
	out, _ = tshark("-i", "softroce", "-f", "kind ack")
	if strings.Count(out, "192.0.2.2\t") != 300 {
		t.Errorf("a capture filter for ACKs selects\n%s", out)
	}
	out, _ = run("tshark", "-i", "softroce", "-c", "500", "-Y", "frame.comment", "-T", "fields", "-e", "frame.comment")
	contains("comments", out, "fault rule 1: set pkey 0x1234 every 50 kind write (softroce0, send)",
		"dropped: pkey (softroce1, receive)\n", "dropped: out_of_sequence (softroce1, receive)\n")

	for _, reader := range []string{"tcpdump -r - -c 20", "tshark -i - -c 20"} {
		out, errs := run("sh", "-c", bin+" capture -o - | "+reader)
		if n := strings.Count(out, "192.0.2.1"); n != 20 {
			t.Errorf("%s has read %d packets from a pipe\n%s%s", reader, n, out, errs)
		}
	}
}
