package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// A pingpongProgram is an exchange between two copies of an unmodified program: one on the kernel's
// verbs in the guest, the other under softroce run. Both check every byte.
type pingpongProgram struct {
	tool string
	mtu  int // 0 if the program has no such option
	size int
}

func (c pingpongProgram) String() string {
	return fmt.Sprintf("%s,mtu=%d,size=%d", c.tool, c.mtu, c.size)
}

const pingpongIterations = 30

func (c pingpongProgram) args(device string, gid int) []string {
	l := []string{c.tool, "-d", device, "-g", strconv.Itoa(gid), "-s", strconv.Itoa(c.size), "-n", strconv.Itoa(pingpongIterations), "-c"}
	if c.mtu != 0 {
		l = append(l, "-m", strconv.Itoa(c.mtu))
	}
	return l
}

// ibv_ud_pingpong expects 40 bytes for a GRH before the data, on IPv4 too.
var pingpongPrograms = []pingpongProgram{
	{"ibv_uc_pingpong", 1024, 4097},
	{"ibv_ud_pingpong", 0, 2048},
	{"ibv_uc_pingpong", 256, 1000},
	{"ibv_uc_pingpong", 4096, 10000},
	{"ibv_ud_pingpong", 0, 1},
}

// pingpongSampleSize is how many run over IPv6, and on links other than packet.
const pingpongSampleSize = 2

// TestUnreliablePingpongsWithKernel runs unmodified programs over UC and UD.
func TestUnreliablePingpongsWithKernel(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	libs := harness.Libraries(t)
	for _, l := range harness.LinksAnd(harness.XDP) {
		if l.Name == "dgram" {
			continue // QEMU's socket drops packets of a burst, and UC and UD do not retransmit
		}
		t.Run(l.Name, func(t *testing.T) {
			l.Exclusive.Acquire(t)
			s := harness.NewTestbed(t, l)
			for _, v := range harness.IPVersions {
				play := pingpongPrograms
				if v.IPv6 || l.Name != "packet" {
					play = pingpongPrograms[:pingpongSampleSize]
				}
				for _, c := range play {
					t.Run(fmt.Sprintf("%s/%v/kernel serves", v.Name, c), func(t *testing.T) { programAsClient(t, s, v, c, libs) })
					t.Run(fmt.Sprintf("%s/%v/kernel connects", v.Name, c), func(t *testing.T) { programAsServer(t, s, v, c, libs) })
				}
			}
		})
	}
}

const pingpongLimit = 40 * time.Second

func programAsClient(t *testing.T, s *harness.Testbed, v harness.IPVersion, c pingpongProgram, libs string) {
	ctx, cancel := context.WithTimeout(t.Context(), pingpongLimit)
	defer cancel()
	guest, err := s.Guest.Start(ctx, pingpongLimit, strings.Join(c.args("rxe0", rxelab.GIDIndex(v.IPv6)), " "))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Guest.WaitListen(ctx, pingpongPort); err != nil {
		t.Fatalf("%v: %s", err, guest.Output())
	}
	out, err := programCommand(ctx, t, s, v, c, libs, s.Guest.Host.String()).CombinedOutput()
	guestOut, guestErr := guest.Wait()
	c.check(t, out, err, guestOut, guestErr)
}

func programAsServer(t *testing.T, s *harness.Testbed, v harness.IPVersion, c pingpongProgram, libs string) {
	ctx, cancel := context.WithTimeout(t.Context(), pingpongLimit)
	defer cancel()
	softroce := programCommand(ctx, t, s, v, c, libs)
	var out bytes.Buffer
	softroce.Stdout, softroce.Stderr = &out, &out
	if err := softroce.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- softroce.Wait() }()
	for !harness.Listens(softroce.Process.Pid, pingpongPort) {
		select {
		case err := <-ended:
			t.Fatalf("%s does not listen: %v\n%s", c.tool, errors.Join(err, ctx.Err()), &out)
		case <-time.After(5 * time.Millisecond):
		}
	}
	guestOut, guestErr := s.Guest.Run(ctx, pingpongLimit, strings.Join(append(c.args("rxe0", rxelab.GIDIndex(v.IPv6)), s.Lab.Host().String()), " "))
	if guestErr != nil {
		cancel() // softroce's end may wait for a peer that has failed
	}
	err := <-ended
	c.check(t, out.Bytes(), err, guestOut, guestErr)
}

// programCommand prepares softroce's program.
func programCommand(ctx context.Context, t *testing.T, s *harness.Testbed, v harness.IPVersion, c pingpongProgram, libs string, host ...string) *exec.Cmd {
	t.Helper()
	bin := harness.Binary(t)
	argv := append([]string{bin, "--socket", s.Socket, "run", "-q", "--"}, c.args("softroce0", s.GIDIndex(t, v))...)
	cmd := s.Lab.Command(ctx, append(argv, host...)...)
	cmd.Env = append(os.Environ(), "SOFTROCE_LIBDIR="+libs)
	return cmd
}

// check checks that both ends succeeded and transferred all bytes.
func (c pingpongProgram) check(t *testing.T, softroce []byte, err error, guest string, guestErr error) {
	t.Helper()
	want := fmt.Sprintf("%d bytes in", 2*c.size*pingpongIterations)
	for _, out := range []string{string(softroce), guest} {
		if !strings.Contains(out, want) || strings.Contains(out, "invalid data") {
			t.Errorf("want %q and no invalid data", want)
		}
	}
	if err != nil || guestErr != nil || t.Failed() {
		t.Errorf("softroce: %v\n%s\nkernel: %v\n%s", err, softroce, guestErr, guest)
	}
}
