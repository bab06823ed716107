package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"softroce/e2e/harness"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pingpongPort is the TCP port of ibv_rc_pingpong.
const pingpongPort = 18515

// A pingpong holds the options that both programs get.
type pingpong struct {
	mtu, size, iters int
}

func (p pingpong) args(gid int) []string {
	return []string{"-g", strconv.Itoa(gid), "-m", strconv.Itoa(p.mtu), "-s", strconv.Itoa(p.size), "-n", strconv.Itoa(p.iters), "-c"}
}

func TestKernelRCPingpong(t *testing.T) {
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		list := []pingpong{{4096, 10000, 100}, {1024, 4096, 100}, {1024, 1001, 20}}
		if !s.OnFirstLink() {
			list = list[:1]
		}
		for _, v := range harness.IPVersions {
			for _, p := range list {
				name := fmt.Sprintf("%s/mtu=%d,size=%d", v.Name, p.mtu, p.size)
				t.Run(name+"/kernel serves", func(t *testing.T) { pingpongAsClient(t, s, v, p) })
				t.Run(name+"/kernel connects", func(t *testing.T) { pingpongAsServer(t, s, v, p) })
			}
		}
	})
}

func pingpongAsClient(t *testing.T, s *harness.Testbed, v harness.IPVersion, p pingpong) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	guest, err := s.Guest.Start(ctx, 30*time.Second, guestPingpongCommand(v, p))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Guest.WaitListen(ctx, pingpongPort); err != nil {
		t.Fatal(err)
	}
	softroce := pingpongCommand(ctx, t, s, v, p, s.Guest.Host.String())
	out, err := softroce.CombinedOutput()
	guestOut, guestErr := guest.Wait()
	checkPingpong(t, p, out, err, guestOut, guestErr)
}

func pingpongAsServer(t *testing.T, s *harness.Testbed, v harness.IPVersion, p pingpong) {
	pingpongAsServerOf(t, s, v, p, guestPingpongCommand(v, p))
}

// pingpongAsServerOf is pingpongAsServer with another program in the guest.
func pingpongAsServerOf(t *testing.T, s *harness.Testbed, v harness.IPVersion, p pingpong, guest string) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	softroce := pingpongCommand(ctx, t, s, v, p)
	var out bytes.Buffer
	softroce.Stdout, softroce.Stderr = &out, &out
	if err := softroce.Start(); err != nil {
		t.Fatal(err)
	}
	for !harness.Listens(softroce.Process.Pid, pingpongPort) {
		if ctx.Err() != nil || softroce.Process.Signal(syscall.Signal(0)) != nil {
			t.Fatalf("softroce pingpong does not listen: %s", &out)
		}
		time.Sleep(5 * time.Millisecond)
	}
	guestOut, guestErr := s.Guest.Run(ctx, 30*time.Second, guest+" "+s.Lab.Host().String())
	if guestErr != nil {
		cancel() // softroce's end may wait for a peer that has failed
	}
	err := softroce.Wait()
	checkPingpong(t, p, out.Bytes(), err, guestOut, guestErr)
}

// pingpongCommand prepares softroce's program.
func pingpongCommand(ctx context.Context, t *testing.T, s *harness.Testbed, v harness.IPVersion, p pingpong, host ...string) *exec.Cmd {
	t.Helper()
	bin := harness.Binary(t)
	argv := append([]string{bin, "pingpong", "--socket", s.Socket}, p.args(s.GIDIndex(t, v))...)
	return s.Lab.Command(ctx, append(argv, host...)...)
}

// guestPingpongCommand returns the command line of the guest's program.
func guestPingpongCommand(v harness.IPVersion, p pingpong) string {
	return "ibv_rc_pingpong -d rxe0 " + strings.Join(p.args(v.GuestGID), " ")
}

// checkPingpong checks that both ends succeeded and transferred all bytes.
func checkPingpong(t *testing.T, p pingpong, softroce []byte, err error, guest string, guestErr error) {
	t.Helper()
	if err != nil || guestErr != nil {
		t.Fatalf("softroce: %v\n%s\nkernel: %v\n%s", err, softroce, guestErr, guest)
	}
	want := fmt.Sprintf("%d bytes in", 2*p.size*p.iters)
	if !strings.Contains(guest, want) || strings.Contains(guest, "invalid data") {
		t.Errorf("kernel's end:\n%s", guest)
	}
	if !strings.Contains(string(softroce), want) {
		t.Errorf("softroce's end:\n%s", softroce)
	}
}
