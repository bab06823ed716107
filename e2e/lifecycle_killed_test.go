package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/perf"
	"softroce/internal/show"
	"softroce/verbs"
)

// victims are programs that keep their queues full until they are killed.
var victims = []string{
	"ib_write_bw -D 60 -q 4", "ib_read_bw -D 60 -s 1048576", "ib_send_bw -D 60 -c UD -s 1024", "ib_send_bw -D 60 -b",
	"ib_atomic_bw -D 60", "ib_send_lat -n 1000000 -e", "ib_write_bw -D 60 -c UC", "ibv_srq_pingpong -n 1000000 -e", "ibv_xsrq_pingpong -n 20000",
}

const (
	parallelKillers = 6  // that many pairs run at the same time
	roundsPerKiller = 27 // in each round two programs are killed
	maxWarmUps      = 5  // at most, with a third of the rounds each
)

// firstLifetime bounds the random lifetimes of the programs at first. A slow machine needs more:
// see TestKilledClientsLeakNothing.
const firstLifetime = 600 * time.Millisecond

// TestKilledClientsLeakNothing kills programs at random times: while they attach, connect, and have
// work requests outstanding. Another client's queue pairs work all the time. At the end the daemon
// must hold the same resources as before.
func TestKilledClientsLeakNothing(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "killed")
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	withSmallHeap := func(ctx context.Context, argv ...string) *exec.Cmd { // so that resident memory is close to live memory
		return harness.InNamespace(ns)(ctx, append([]string{"env", "GOGC=10"}, argv...)...)
	}
	daemon := harness.StartDaemon(t, withSmallHeap, "--socket", socket)
	harness.OpenNIC(t, daemon, socket).Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	lifetime := firstLifetime
	killClients := func(sequence uint64, rounds int) footprint {
		survivor := runSurvivor(t, socket)
		var running sync.WaitGroup
		for i := range uint64(parallelKillers) {
			running.Go(func() { killPrograms(t, ns, socket, rand.New(rand.NewPCG(seed, sequence+i)), rounds, lifetime) })
		}
		running.Wait()
		if err := survivor(); err != nil {
			t.Errorf("the client that was not killed: %v", err)
		}
		awaitNoObjects(t, socket)
		awaitNoConnections(t, daemon.Pid())
		return footprintOf(t, daemon.Pid())
	}
	// The heap grows to its largest need and stays there, so the first kills are not measured. If
	// most programs were killed before they created a queue pair, they live longer the next time.
	var before footprint
	had, sequence := queuePairs(t, socket), uint64(0)
	for range maxWarmUps {
		before = killClients(sequence, roundsPerKiller/3)
		sequence += parallelKillers
		now := queuePairs(t, socket)
		if now-had >= parallelKillers*roundsPerKiller/3 {
			break
		}
		had, lifetime = now, 2*lifetime
	}
	t.Logf("programs live for %v at most", lifetime)
	had = queuePairs(t, socket)
	after := killClients(sequence, roundsPerKiller)
	if made := queuePairs(t, socket) - had; made < parallelKillers*roundsPerKiller/2 {
		t.Errorf("%d killed pairs of programs had created only %d queue pairs", parallelKillers*roundsPerKiller, made)
	}
	t.Logf("before: %+v; after %d more programs were killed: %+v", before, 2*parallelKillers*roundsPerKiller, after)
	if after.descriptors != before.descriptors || after.mappings > before.mappings+mappingSlack || after.resident > before.resident+residentSlackKiB {
		t.Error("the daemon holds more than before")
	}
}

// queuePairs returns how many queue pairs the clients' NIC has created: QP numbers are assigned in
// order.
func queuePairs(t *testing.T, socket string) int {
	t.Helper()
	c, err := verbs.Open(t.Context(), "softroce0", verbs.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pd, err := c.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cq, err := c.CreateCQ(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	return int(qp.QPNum())
}

// killPrograms starts pairs of programs and kills each program at a random time, after lifetime at
// the latest.
func killPrograms(t *testing.T, ns, socket string, r *rand.Rand, rounds int, lifetime time.Duration) {
	x := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "softroce0"})
	y := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "softroce1"})
	for range rounds {
		victim, port := victims[r.IntN(len(victims))], 20000+r.IntN(20000)
		flag := "-x"
		if strings.HasPrefix(victim, "ibv_") {
			flag = "-g"
		}
		args := fmt.Sprintf("%s %s 1 -p %d -d ", victim, flag, port)
		lifetimes := [2]time.Duration{time.Duration(r.Int64N(int64(lifetime))), time.Duration(r.Int64N(int64(lifetime)))}
		serverCtx, killServer := context.WithCancel(t.Context())
		server := y.Start(serverCtx, t, args+y.Device)
		limit, stop := context.WithTimeout(serverCtx, harness.StartLimit)
		y.WaitListening(limit, server, port) // an error means that the server did not get the port and has ended
		stop()
		clientCtx, killClient := context.WithCancel(t.Context())
		client := x.Start(clientCtx, t, args+x.Device+" localhost")
		// SIGKILL of softroce run ends its program too.
		time.AfterFunc(lifetimes[0], killServer)
		time.AfterFunc(lifetimes[1], killClient)
		server.Wait()
		client.Wait()
		killServer()
		killClient()
	}
}

// runSurvivor runs a client that checks every byte, until the returned function is called.
func runSurvivor(t *testing.T, socket string) (end func() error) {
	t.Helper()
	open := func(device string) *verbs.Context {
		c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open("softroce0"), open("softroce1")
	stop, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer a.Close()
		defer b.Close()
		for n := 0; ; n++ {
			o := perf.DefaultOptions([]perf.Op{perf.Read, perf.Send, perf.Write, perf.Atomic}[n%4])
			o.Duration, o.Latency = time.Second, 10*time.Millisecond
			r, err := perf.Between(context.Background(), a, b, verbs.AnyGID, o)
			if err == nil && !r.Checked {
				err = fmt.Errorf("%s: data was not checked", o.Op)
			}
			select {
			case <-stop:
				result <- err
				return
			default:
			}
			if err != nil {
				result <- err
				return
			}
		}
	}()
	return func() error { close(stop); return <-result }
}

// awaitNoObjects waits until the daemon shows no object of any client.
func awaitNoObjects(t *testing.T, socket string) {
	t.Helper()
	limit := time.Now().Add(harness.StartLimit)
	for _, kind := range show.Kinds() {
		what := kind.Name
		if slices.Contains([]string{"devices", "counters", "faults", "user"}, what) { // show is a client of a user
			continue
		}
		for n := harness.CountObjects(t, socket, what); n != 0; n = harness.CountObjects(t, socket, what) {
			if time.Now().After(limit) {
				t.Fatalf("%d objects left of kind %s", n, what)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// awaitNoConnections waits until the daemon has no socket but the one that it listens on: it closes
// a connection after it has destroyed the objects.
func awaitNoConnections(t *testing.T, pid int) {
	t.Helper()
	limit := time.Now().Add(harness.StartLimit)
	for {
		sockets, dir := 0, fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			target, _ := os.Readlink(filepath.Join(dir, fd.Name()))
			if strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
		if sockets == 1 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the daemon has %d sockets without clients, want 1", sockets)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A footprint is what a process holds of the kernel's resources.
type footprint struct {
	descriptors int
	mappings    int
	resident    int // KiB
}

// Tolerances for stacks of threads and for memory that the garbage collector has not returned. One
// leaked ring per killed program would exceed them.
const (
	mappingSlack     = 40
	residentSlackKiB = 24 << 10
)

func footprintOf(t *testing.T, pid int) (f footprint) {
	t.Helper()
	proc := "/proc/" + strconv.Itoa(pid)
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nVmRSS:")
	fields := strings.Fields(rest)
	if f.resident, err = strconv.Atoi(fields[0]); err != nil {
		t.Fatal(err)
	}
	f.descriptors, f.mappings = len(fds), strings.Count(string(maps), "\n")
	return f
}

// TestClientsFailWhenDaemonIsKilled kills the daemon while programs poll, wait for completion
// events, spin on their memory, or wait for a connection.
func TestClientsFailWhenDaemonIsKilled(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "clients")
	socket := filepath.Join(t.TempDir(), "s")
	daemon := harness.LaunchDaemon(t, harness.InNamespace(ns), "--socket", socket)
	harness.OpenNIC(t, daemon, socket).Close()
	x, y := harness.FabricEndpoints(ns, socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type runningProgram struct {
		command string
		job     *harness.Job
	}
	var programs []runningProgram
	for _, p := range []string{
		"ib_write_bw -D 120 -x", "ib_read_bw -D 120 -x", "ib_send_bw -n 1000000 -e -x", "ib_send_lat -n 1000000 -e -x",
		"ibv_rc_pingpong -n 100000000 -g", "ibv_rc_pingpong -n 100000000 -e -g", "ibv_srq_pingpong -n 100000000 -e -g",
	} {
		port := harness.FreePort()
		command := fmt.Sprintf("%s 1 -p %d -d ", p, port)
		server := y.Start(ctx, t, command+y.Device)
		if err := y.WaitListening(ctx, server, port); err != nil {
			t.Fatal(err)
		}
		client := x.Start(ctx, t, command+x.Device+" localhost")
		programs = append(programs, runningProgram{"server of " + p, server}, runningProgram{"client of " + p, client})
	}
	bin := harness.Binary(t)
	perfJob := harness.StartJob(t, exec.CommandContext(ctx, bin, "--socket", socket, "perf", "write", "--duration", "2m", "--latency", "0"))
	programs = append(programs, runningProgram{"softroce perf", perfJob})
	waiting := []string{"rping -s -a", "rstream -b", "ucmatose -b", "udpong -b", "rdma_server -s"}
	for _, p := range waiting {
		programs = append(programs, runningProgram{p, y.Start(ctx, t, fmt.Sprintf("%s %s -p %d", p, y.Addr[false], harness.FreePort()))})
	}
	// Each program has one queue pair, except perf with two and srq_pingpong with sixteen.
	for limit := time.Now().Add(harness.ProgramLimit); ; time.Sleep(20 * time.Millisecond) {
		listening, err := y.CountListeners(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if listening == len(waiting) && harness.CountObjects(t, socket, "qp") >= 12+2+32 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the programs are not ready: %d listen", listening)
		}
	}
	time.Sleep(500 * time.Millisecond) // so that work requests are outstanding; the exact time does not matter
	if err := daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	limit := time.After(harness.ProgramLimit)
	for _, o := range programs {
		select {
		case <-o.job.Done:
		case <-limit:
			t.Fatalf("%s hangs\n%s", o.command, o.job.Output())
		}
		// A status above 128 comes from softroce run and means a signal; 255 is -1.
		out, err := o.job.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() > 128 && exit.ExitCode() != 255 {
			t.Errorf("%s: %v, want the exit status of an error\n%s", o.command, err, out)
		}
	}
}
