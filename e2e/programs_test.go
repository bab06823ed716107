package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"softroce/verbs"
)

// libraries is the folder of the libraries that stand for libibverbs and its kin, built from this tree.
var libraries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "lib")
	out, err := exec.Command("make", "-C", "../libverbs", "OUT="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libs: %w: %s", err, out)
	}
	return dir, nil
})

// A venue is where a distribution's programs talk to each other: how each end is started and what its NIC is.
type venue struct {
	ends [2]end
	host string // the first end's TCP address, as the second one sees it
}

// An end is one of the two programs' surroundings.
type end struct {
	device string
	gid    map[bool]int                                                  // index, for IPv6 or not
	start  func(ctx context.Context, name string, a ...string) *exec.Cmd // with the environment in which it finds our library
}

// program is a conversation of two programs of a distribution.
type program struct {
	name string
	args []string
	ipv6 bool
	want string // in the client's output
}

func TestProgramsOnOneDaemon(t *testing.T) {
	everyProgram(t, fabricVenue(t))
}

func TestProgramsBetweenTwoDaemons(t *testing.T) {
	needRoot(t, "network namespaces")
	everyProgram(t, vethVenue(t))
}

func everyProgram(t *testing.T, v *venue) {
	t.Run("ibv_devinfo", func(t *testing.T) { v.devinfo(t) })
	for _, p := range programs() {
		name := p.name + strings.Join(p.args, " ")
		if p.ipv6 {
			name += " IPv6"
		}
		t.Run(name, func(t *testing.T) { v.talk(t, &p) })
	}
}

// programs lists them with the options that they have.
func programs() (l []program) {
	pingpong := func(name string, args ...string) {
		iters := "100"
		for i, a := range args {
			if a == "-n" {
				iters = args[i+1]
			}
		}
		want := iters + " iters in"
		if name == "ibv_xsrq_pingpong" { // which reports no time
			want = "success"
		}
		l = append(l, program{name: name, args: append([]string{"-n", iters}, args...), want: want})
	}
	for _, name := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"} {
		pingpong(name)
		pingpong(name, "-e")
	}
	for _, name := range []string{"ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"} {
		pingpong(name, "-c") // the data is looked at
	}
	pingpong("ibv_rc_pingpong", "-t")
	pingpong("ibv_rc_pingpong", "-N")
	l = append(l, program{name: "ibv_rc_pingpong", args: []string{"-n", "100", "-c"}, ipv6: true, want: "100 iters in"},
		program{name: "ibv_ud_pingpong", args: []string{"-n", "100", "-c"}, ipv6: true, want: "100 iters in"})

	perf := func(name string, args ...string) {
		l = append(l, program{name: name, args: append([]string{"-n", "50"}, args...), want: "#bytes"})
	}
	for _, service := range []string{"RC", "UC", "UD"} {
		perf("ib_send_bw", "-c", service)
		perf("ib_send_lat", "-c", service, "-I", "64")
		perf("ib_send_bw", "-c", service, "-b")
		perf("ib_send_bw", "-c", service, "-e")
		perf("ib_send_lat", "-c", service, "-e")
		perf("ib_send_bw", "-c", service, "-q", "16")
	}
	perf("ib_send_bw", "-a", "-n", "5")
	perf("ib_send_bw", "--use-srq", "-r", "64", "-q", "4")
	perf("ib_send_bw", "-c", "XRC")
	perf("ib_write_bw", "-c", "UC")
	perf("ib_write_lat", "-c", "UC")
	perf("ib_write_bw", "-c", "XRC")
	for _, mtu := range []string{"256", "512", "1024", "2048", "4096"} {
		perf("ib_write_bw", "-m", mtu)
	}
	for _, op := range []string{"write", "read"} {
		perf("ib_" + op + "_bw")
		perf("ib_" + op + "_lat")
		perf("ib_"+op+"_bw", "-a", "-n", "5", "-b")
		perf("ib_"+op+"_bw", "-q", "16")
	}
	perf("ib_write_lat", "-I", "220")
	perf("ib_read_bw", "-e")
	perf("ib_read_lat", "-e")
	for _, kind := range []string{"FETCH_AND_ADD", "CMP_AND_SWAP"} {
		perf("ib_atomic_bw", "-A", kind)
		perf("ib_atomic_lat", "-A", kind)
	}
	perf("ib_atomic_bw", "-b", "-q", "4", "-e")
	return l
}

// programLimit is how long a conversation may take. On a machine whose processors are all taken by those who
// poll, each message may cost a time slice or more.
const programLimit = 90 * time.Second

// talk runs both ends of a conversation.
func (v *venue) talk(t *testing.T, p *program) {
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	port := freePort(t)
	server := v.ends[0].program(ctx, p, port)
	var serverOut bytes.Buffer
	server.Stdout, server.Stderr = &serverOut, &serverOut
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	for !listens(server.Process.Pid, port) {
		if ctx.Err() != nil || len(ended) > 0 {
			t.Fatalf("%s does not listen: %s", p.name, &serverOut)
		}
		time.Sleep(5 * time.Millisecond)
	}
	clientOut, err := v.ends[1].program(ctx, p, port, v.host).CombinedOutput()
	if err != nil {
		server.Process.Kill() // it may wait for ever
	}
	serverErr := <-ended
	if err != nil || serverErr != nil {
		t.Fatalf("server: %v\n%s\nclient: %v\n%s", serverErr, &serverOut, err, clientOut)
	}
	if !strings.Contains(string(clientOut), p.want) {
		t.Errorf("no %q in\n%s", p.want, clientOut)
	}
	for _, out := range []string{serverOut.String(), string(clientOut)} {
		if strings.Contains(out, "invalid data") {
			t.Errorf("the data is wrong:\n%s", out)
		}
	}
}

// program is the command of one end.
func (e *end) program(ctx context.Context, p *program, port int, host ...string) *exec.Cmd {
	gid := strconv.Itoa(e.gid[p.ipv6])
	args := []string{"-d", e.device, "-p", strconv.Itoa(port)}
	if strings.HasPrefix(p.name, "ibv_") {
		args = append(args, "-g", gid)
	} else {
		args = append(args, "-x", gid)
	}
	return e.start(ctx, p.name, append(append(args, p.args...), host...)...)
}

func (v *venue) devinfo(t *testing.T) {
	out, err := v.ends[0].start(t.Context(), "ibv_devinfo", "-v", "-d", v.ends[0].device).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"hca_id:\t" + v.ends[0].device, "PORT_ACTIVE (4)", "link_layer:\t\tEthernet", "MEM_WINDOW_TYPE_2B", "XRC", "ATOMIC_HCA",
		", RoCE v2",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// fabricVenue has both NICs on one daemon; programs find the library through LD_LIBRARY_PATH.
func fabricVenue(t *testing.T) *venue {
	needPrograms(t)
	socket := filepath.Join(t.TempDir(), "s")
	d := startDaemon(t, nil, "--socket", socket)
	openNIC(t, d, socket).Close()
	start := func(ctx context.Context, name string, a ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, a...)
		cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+library(t))
		return cmd
	}
	v := &venue{host: "127.0.0.1"}
	for i := range v.ends {
		device := fmt.Sprintf("softroce%d", i)
		v.ends[i] = end{device, gids(t, socket, device), start}
	}
	return v
}

// needPrograms leaves the test out where the distribution's programs are not installed.
func needPrograms(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ibv_rc_pingpong", "ib_write_bw", "make", "cc"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	if testing.Short() {
		t.Skip("not with -short")
	}
}

// library is the folder of libraries.
func library(t *testing.T) string {
	t.Helper()
	dir, err := libraries()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// gids finds an IPv4 and an IPv6 GID of a NIC, the latter not of the link alone.
func gids(t *testing.T, socket, device string) map[bool]int {
	t.Helper()
	c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found := map[bool]int{}
	for limit := time.Now().Add(startLimit); len(found) < 2; time.Sleep(20 * time.Millisecond) {
		table, err := c.GIDs()
		if err != nil || time.Now().After(limit) {
			t.Fatalf("GIDs of %s: %v, %v", device, table, err)
		}
		for _, g := range table {
			if a := g.GID.Addr(); !a.IsLinkLocalUnicast() {
				found[a.Is6()] = g.Index
			}
		}
	}
	return found
}

// vethVenue has a daemon on each end of a veth pair, each in a network namespace of its own. Programs have the library preloaded.
func vethVenue(t *testing.T) *venue {
	needPrograms(t)
	names := namespaces(t)
	v := &venue{host: "10.78.9.1"}
	for i, ns := range names {
		socket := filepath.Join(t.TempDir(), "s")
		within := func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns}, argv...)...)
		}
		d := startDaemon(t, within, "--socket", socket, "--nic", "softroce0=packet:rdma0")
		openNIC(t, d, socket).Close()
		start := func(ctx context.Context, name string, a ...string) *exec.Cmd {
			cmd := within(ctx, append([]string{name}, a...)...)
			cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_PRELOAD="+filepath.Join(library(t), "libibverbs.so.1"))
			return cmd
		}
		v.ends[i] = end{"softroce0", gids(t, socket, "softroce0"), start}
	}
	return v
}

// namespaces makes two network namespaces, for as long as the test runs, joined by the interface rdma0 of each.
func namespaces(t *testing.T) (names [2]string) {
	t.Helper()
	for i := range names {
		names[i] = fmt.Sprintf("softroce-e2e-%d-%d", os.Getpid(), i)
		command(t, "ip", "netns", "add", names[i])
		t.Cleanup(func() { exec.Command("ip", "netns", "del", names[i]).Run() })
	}
	command(t, "ip", "link", "add", "rdma0", "netns", names[0], "mtu", "5000", "type", "veth", "peer", "name", "rdma0", "netns", names[1], "mtu", "5000")
	for i, ns := range names {
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.78.9.%d/24", i+1), "dev", "rdma0")
		command(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("fd00:78:9::%d/64", i+1), "dev", "rdma0", "nodad")
		command(t, "ip", "-n", ns, "link", "set", "rdma0", "up")
		command(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	return names
}

// A program that is in the middle of its work when its daemon is killed hears of it, and ends.
func TestProgramsSurviveTheirDaemon(t *testing.T) {
	needPrograms(t)
	for _, args := range [][]string{{"ib_write_bw", "-D", "60"}, {"ib_send_bw", "-n", "1000000", "-e"}, {"ib_send_lat", "-n", "1000000", "-e"}, {"ib_send_lat", "-D", "60"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), programLimit)
			defer cancel()
			bin, err := softroceBinary()
			if err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(t.TempDir(), "s")
			daemon := exec.Command(bin, "daemon", "--socket", socket)
			if err := daemon.Start(); err != nil {
				t.Fatal(err)
			}
			for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
				time.Sleep(5 * time.Millisecond)
			}
			port := freePort(t)
			var cmds [2]*exec.Cmd
			var out [2]bytes.Buffer
			for i := range cmds {
				a := append([]string{"-d", fmt.Sprintf("softroce%d", i), "-x", "1", "-p", strconv.Itoa(port)}, args[1:]...)
				if i == 1 {
					a = append(a, "127.0.0.1")
				}
				cmds[i] = exec.CommandContext(ctx, args[0], a...)
				cmds[i].Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+library(t))
				cmds[i].Stdout, cmds[i].Stderr = &out[i], &out[i]
				if err := cmds[i].Start(); err != nil {
					t.Fatal(err)
				}
				for i == 0 && !listens(cmds[0].Process.Pid, port) && ctx.Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
			}
			for ofDaemon := 0; ofDaemon < 2 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				ofDaemon = count(t, bin, socket, "qp")
			}
			time.Sleep(300 * time.Millisecond) // into the middle of it
			daemon.Process.Kill()
			daemon.Wait()
			for i, c := range cmds {
				err := c.Wait()
				var exit *exec.ExitError
				if ctx.Err() != nil || !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signaled() {
					t.Errorf("end %d: %v, %v; want an exit status\n%s", i, err, ctx.Err(), &out[i])
				}
			}
		})
	}
}
