package e2e

import (
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
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// The environment of a process that attacks a daemon: the name of the attack, and the user that it
// becomes if it needs root to begin.
const (
	attackEnv     = "SOFTROCE_E2E_ATTACK"
	attackUserEnv = "SOFTROCE_E2E_ATTACK_USER"
)

// attackerUID is the first user ID of attackers. The daemon and the victim run as root.
const attackerUID = 23400

// attackLimit bounds how long an attack may take until it is in progress.
const attackLimit = 30 * time.Second

// An attacker is a process that attacks a daemon until it is killed.
type attacker struct {
	cmd *exec.Cmd
	job *harness.Job
}

// startAttack runs an attack as a user of its own and returns when it is in progress, or when it
// has ended because the daemon refused it.
func startAttack(t *testing.T, socket, name string, uid int, asRoot bool) *attacker {
	t.Helper()
	// Other users have no access to the directory of this binary, but to the file behind this link.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), attackEnv+"="+name, fmt.Sprintf("%s=%d", attackUserEnv, uid), "SOFTROCE_SOCKET="+socket)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // what it mounts ends with it
	if !asRoot {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	a := &attacker{cmd, harness.StartJob(t, cmd)}
	t.Cleanup(a.kill)
	for limit := time.Now().Add(attackLimit); !strings.Contains(a.job.Output(), inProgress); time.Sleep(5 * time.Millisecond) {
		if !a.job.Running() || time.Now().After(limit) {
			t.Fatalf("the attack has not begun:\n%.4000s", a.job.Output())
		}
	}
	return a
}

// kill ends the attack with SIGKILL.
func (a *attacker) kill() {
	a.cmd.Process.Kill()
	a.job.Wait()
}

// attackTests are the attacks that run beside a victim, with the number of users that attack.
var attackTests = []struct {
	name   string
	users  int
	asRoot bool // to begin, because it needs a right that the others lack
}{
	{"silence", 2, false},
	{"messages", 2, false},
	{"ring contents", 2, false},
	{"holes", 1, false},
	{"holes in a buffer", 1, false},
	{"holes in rings", 1, false},
	{"bandwidth", 1, false},
	{"snapshots", 2, false},
	{"connections", 1, false},
	{"descriptors", 2, false},
	{"rings", 2, false},
	{"one file", 1, false},
	{"slow registration", 1, true},
	{"slow memory", 1, true},
	{"slow target", 1, true},
	{"slow faults", 1, true},
}

// TestAttacksStopNoOtherClient runs attacks as other users beside a client that transfers and
// checks data all the time. During each attack that client must proceed, and a new client of
// another user must be able to attach and transfer. After each attack, whose processes are killed,
// the daemon must hold what it held before.
func TestAttacksStopNoOtherClient(t *testing.T) {
	harness.NeedRoot(t, "processes of other users")
	// Not parallel: attacks take the processors that the guests of other tests need.
	daemon, socket := startSharedDaemon(t)
	if os.Getenv(stallEnv) != "" {
		isolateEngine(t, daemon.Pid())
	}
	v := startVictim(t, socket)
	for _, a := range attackTests {
		t.Run(subtestName(a.name), func(t *testing.T) {
			before := footprintOf(t, daemon.Pid())
			v.begin()
			var attackers []*attacker
			for i := range a.users {
				attackers = append(attackers, startAttack(t, socket, a.name, attackerUID+i, a.asRoot))
			}
			v.proceed(t, "while the attack began")
			v.proceed(t, "during the attack")
			t.Run("newcomer", func(t *testing.T) { runNewcomer(t, socket) })
			for _, a := range attackers {
				a.kill()
			}
			v.proceed(t, "after the attack")
			awaitFootprint(t, daemon.Pid(), before)
			for _, a := range attackers {
				t.Logf("attacker: %.1000s", a.job.Output())
			}
		})
	}
	v.end(t)
}

// startSharedDaemon starts a daemon that every user may use, until the test ends.
func startSharedDaemon(t *testing.T) (*harness.Daemon, string) {
	t.Helper()
	d, socket := launchSharedDaemon(t, limited)
	t.Cleanup(func() { d.Stop(t) })
	// The daemon keeps two descriptors of the files that sysfs would have, from the first request.
	c, err := control.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := c.Call(t.Context(), control.Request{Name: "open tree", Op: abi.OpOpenTree, Want: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.CloseFDs()
	return d, socket
}

// launchSharedDaemon is startSharedDaemon for a test that ends the daemon itself.
func launchSharedDaemon(t *testing.T, in func(ctx context.Context, argv ...string) *exec.Cmd, options ...string) (*harness.Daemon, string) {
	t.Helper()
	dir := harness.ShortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte("socket-mode: 0666\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	d := harness.LaunchDaemon(t, in, append([]string{"--socket", socket, "--config", config}, options...)...)
	harness.OpenNIC(t, d, socket).Close()
	return d, socket
}

// runNewcomer attaches to both NICs, connects two queue pairs and transfers data.
func runNewcomer(t *testing.T, socket string) {
	open := func(device string) *verbs.Context {
		c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	x, y := verbstest.ConnectedRC(t, open("softroce0"), open("softroce1"))
	for i := range 16 {
		if err := transfer(t.Context(), x, y, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// domainFile returns the file of an XRC domain.
func domainFile(socket string) string { return filepath.Join(filepath.Dir(socket), "domain") }

// TestXRCDomainNeedsAccessToItsFile has another user open the XRC domain of a file that it can only
// name.
func TestXRCDomainNeedsAccessToItsFile(t *testing.T) {
	harness.NeedRoot(t, "processes of other users")
	t.Parallel()
	daemon, socket := startSharedDaemon(t)
	f, err := os.OpenFile(domainFile(socket), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	nic := harness.OpenNIC(t, daemon, socket)
	if _, err := nic.OpenXRCD(t.Context(), f, os.O_CREATE); err != nil {
		t.Fatal(err)
	}
	a := startAttack(t, socket, "file without access", attackerUID, false)
	if got := a.job.Output(); !strings.Contains(got, syscall.EBADF.Error()) {
		t.Errorf("the attacker printed %q", got)
	}
}
