package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
	"softroce/internal/control"
	"softroce/internal/daemon"
)

// TestDebianPackage installs the Debian package in a new root, uses it there, and removes it.
func TestDebianPackage(t *testing.T) {
	harness.NeedRoot(t, "dpkg --root")
	harness.LocalPrograms.Acquire(t)
	harness.RunCommand(t, "make", "-C", "..", "deb")
	debs, err := filepath.Glob("../dist/softroce_*.deb")
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages: %v, %v", debs, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// The root is empty: it has no shell for the scripts, and no libc6 for the dependencies.
	dpkg := []string{"--root=" + root, "--force-script-chrootless", "--force-depends"}
	harness.RunCommand(t, "dpkg", append(dpkg, "--install", debs[0])...)

	bin := filepath.Join(root, "usr/bin/softroce")
	if out := harness.RunCommand(t, bin, "version"); !strings.HasPrefix(out, "softroce ") {
		t.Errorf("version: %s", out)
	}
	socket := filepath.Join(t.TempDir(), "s")
	out := harness.RunCommand(t, bin, "run", "--socket", socket, "--", "sh", "-c",
		"echo $LD_LIBRARY_PATH; softroce="+bin+"; $softroce perf write --duration 50ms --latency 10ms")
	if !strings.Contains(out, "libraries in "+root+"/usr/lib/softroce\n") || !strings.Contains(out, "\n"+root+"/usr/lib/softroce\n") ||
		!strings.Contains(out, "write softroce0 ") {
		t.Errorf("run and perf: %s", out)
	}
	for _, completion := range []string{
		"bash-completion/completions/softroce", "zsh/vendor-completions/_softroce", "fish/vendor_completions.d/softroce.fish",
	} {
		if text, err := os.ReadFile(filepath.Join(root, "usr/share", completion)); err != nil || !strings.Contains(string(text), " complete -- ") {
			t.Errorf("%s: %v\n%s", completion, err, text)
		}
	}
	extcaps, err := filepath.Glob(filepath.Join(root, "usr/lib/*/wireshark/extcap/softroce"))
	if err != nil || len(extcaps) != 1 {
		t.Errorf("extcap programs: %v, %v", extcaps, err)
	} else if text, err := os.ReadFile(extcaps[0]); err != nil || string(text) != "#!/bin/sh\nexec /usr/bin/softroce extcap \"$@\"\n" {
		t.Errorf("extcap: %v\n%s", err, text)
	}
	t.Run("service", func(t *testing.T) { checkService(t, root) })

	harness.RunCommand(t, "dpkg", append(dpkg, "--purge", "softroce")...)
	for _, path := range []string{"usr/bin/softroce", "usr/lib/softroce", "etc/softroce"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			t.Errorf("%s was not removed", path)
		}
	}
}

// checkService verifies the systemd unit, its user and its configuration.
func checkService(t *testing.T, root string) {
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(passwd), "softroce:") {
		t.Errorf("the user softroce: %v\n%s", err, passwd)
	}
	// systemd-analyze needs the program to exist, but systemd need not run.
	bin := filepath.Join(root, "usr/bin/softroce")
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/softroce.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "ExecStart=/usr/bin/softroce daemon --config /etc/softroce/softroce.yaml\n") {
		t.Errorf("the unit does not start the installed program:\n%s", unit)
	}
	file := filepath.Join(t.TempDir(), "softroce.service")
	if err := os.WriteFile(file, []byte(strings.Replace(string(unit), "/usr/bin/softroce", bin, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := harness.RunCommand(t, "systemd-analyze", "verify", "--man=no", file); strings.Contains(out, "softroce") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	config, err := daemon.ReadConfig(filepath.Join(root, "etc/softroce/softroce.yaml"))
	if err != nil || config.Socket != control.DefaultSocket || config.SocketGroup != "softroce" {
		t.Errorf("configuration: %+v, %v", config, err)
	}
}
