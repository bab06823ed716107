package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/e2e/harness"
	"softroce/packet"
)

// TestRsocketsWithSanitizers runs the programs for sockets over RDMA with libraries that were built
// with sanitizers.
func TestRsocketsWithSanitizers(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	dir, runtime := harness.SanitizedLibraries(t)
	// rcopy leaks memory.
	env := fmt.Sprintf("env LD_LIBRARY_PATH=%s LD_PRELOAD=%s ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 ", dir, runtime)
	with := func(e harness.Endpoint) harness.Endpoint {
		start := e.Start
		e.Start = func(ctx context.Context, t *testing.T, line string, more ...string) *harness.Job {
			return start(ctx, t, env+line, more...)
		}
		return e
	}
	var list []cmExchange
	for _, c := range cmExchanges {
		tool, _, _ := strings.Cut(c.server, " ")
		if tool == "rstream" || tool == "riostream" || tool == "rcopy" || tool == "udpong" {
			list = append(list, c)
		}
	}
	if len(list) < 8 {
		t.Fatalf("only %d exchanges use sockets", len(list))
	}
	a, b := harness.FabricPair(t, harness.Judged(t, len(list), 10*len(list))...)
	t.Run("fabric", func(t *testing.T) { runCMExchanges(t, with(a), with(b), list) })
	x, y := harness.VethPair(t)
	var datagrams []cmExchange // these begin with UDP on a veth pair
	for _, c := range list {
		if strings.HasPrefix(c.name, "udpong") {
			datagrams = append(datagrams, c)
		}
	}
	t.Run("veth", func(t *testing.T) { runCMExchanges(t, with(x), with(y), datagrams) })
}

// TestRsocketsWithLostConnectionMessages loses the first of each message of the connection manager.
// An accepted socket sends nothing before its peer has received the reply: the peer's queue pair
// would discard it, and retries run out sooner than the reply is sent again.
func TestRsocketsWithLostConnectionMessages(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	for _, message := range []string{"req", "rep", "rtu", "dreq", "drep"} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "lost.fault")
			if err := os.WriteFile(file, []byte("drop receive cm "+message+" count 1\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			ns := harness.Namespace(t, message)
			socket := harness.DaemonIn(t, ns, append(harness.Judged(t, 1, 6), "--fault", file)...)
			client, server := harness.FabricEndpoints(ns, socket)
			c := cmExchange{server: "rstream -b SELF -T v -C 3 -I 2", client: "rstream -s PEER -T v -C 3 -I 2", want: "custom"}
			c.run(t, server, client, false)
			if dropped, _ := faultCounts(t, socket); dropped == 0 {
				t.Error("no message was dropped")
			}
		})
	}
}

// TestRsocketShutdownFollowsAcknowledgedData verifies that shutdown sends its control message after
// all data before it has been acknowledged.
func TestRsocketShutdownFollowsAcknowledgedData(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	dir := t.TempDir()
	late, file := filepath.Join(dir, "late.fault"), filepath.Join(dir, "all.pcapng")
	if err := os.WriteFile(late, []byte("delay 50ms send kind ack\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ns := harness.Namespace(t, "late")
	socket := harness.DaemonIn(t, ns, "--fault", late)
	client, server := harness.FabricEndpoints(ns, socket)
	stop := harness.StartCapture(t, socket, file)
	c := cmExchange{server: "rstream -b SELF -T v -C 3 -I 2", client: "rstream -s PEER -T v -C 3 -I 2", want: "custom"}
	c.run(t, server, client, false)
	stop()
	harness.Judge(t, file, 1, 6)
	all, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	const disconnect = 7 << 29 // immediate data of the control message
	ends := 0
	for i, p := range all {
		if p.Opcode.Info().Headers&packet.HasImmDt == 0 || p.Imm != disconnect {
			continue
		}
		ends++
		before := packet.PSNAdd(p.BTH.PSN, -1)
		if !slices.ContainsFunc(all[:i], func(a *capture.Packet) bool {
			return capture.Kind(packet.KindAck)(a) && a.Src == p.Dst && packet.PSNDiff(a.BTH.PSN, before) >= 0
		}) {
			t.Errorf("%v is sent before the packets ahead of it were acknowledged", p)
		}
	}
	if ends == 0 {
		t.Errorf("no socket has sent its shutdown in\n%v", all)
	}
}
