package e2e

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/e2e/harness"
	"softroce/packet"
	"softroce/verbs"
)

// roceV1Index is what a NIC of softroce adds to the index of a GID of RoCE v2 for that of RoCE v1.
const roceV1Index = 32

// inRoCEv1 returns an endpoint whose programs choose GIDs of RoCE v1.
func inRoCEv1(e harness.Endpoint) harness.Endpoint {
	gid := map[bool]string{}
	for v6, i := range e.GID {
		n, _ := strconv.Atoi(i)
		gid[v6] = fmt.Sprint(n + roceV1Index)
	}
	e.GID = gid
	return e
}

var roceV1Runs = []programRun{
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 100 -c"},
	{family: pingpongs, tool: "ibv_uc_pingpong", options: "-n 20 -c"},
	{family: pingpongs, tool: "ibv_ud_pingpong", options: "-n 20 -s 1024 -c"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 100 -c"},
	{family: xrcPingpongs, tool: "ibv_xsrq_pingpong", options: "-n 50"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -q 16 -s 5000 -m 1024"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c UD -s 1024"},
	{family: perftests, tool: "ib_send_lat", options: "-n 20"},
	{family: perftests, tool: "ib_read_bw", options: "-n 20 -m 4096"},
	{family: perftests, tool: "ib_atomic_lat", options: "-n 20"},
}

// TestProgramsOverRoCEv1 runs programs with GIDs of RoCE v1. What is on the wire is dissected by
// tshark, and each ICRC compared with one that is computed from the bytes here.
func TestProgramsOverRoCEv1(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	for _, program := range []string{"tshark", "tcpdump"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	namespaces := harness.VethNamespaces(t)
	judged := harness.Judged(t, len(roceV1Runs), 20*len(roceV1Runs))
	endpoints := [2]harness.Endpoint{}
	for i, ns := range namespaces {
		socket := harness.DaemonIn(t, ns, append([]string{"--nic", "rdma0=packet:rdma0,default_roce_mode=v1"}, judged...)...)
		judged = nil
		v4, v6 := fmt.Sprintf("10.78.9.%d", i+1), fmt.Sprintf("fd00:78:9::%d", i+1)
		endpoints[i] = inRoCEv1(harness.OnDaemon(ns, socket, harness.Endpoint{
			Device: "rdma0", Host: v4, Addr: map[bool]string{false: v4, true: v6},
			GID: map[bool]string{false: fmt.Sprint(harness.GIDs(t, socket, "rdma0")[false]), true: fmt.Sprint(harness.GIDs(t, socket, "rdma0")[true])},
		}))
	}
	file := filepath.Join(t.ArtifactDir(), "rocev1.pcap")
	stop := startTcpdump(t, namespaces[0], "rdma0", file)
	for _, r := range roceV1Runs {
		for _, v := range harness.IPVersions {
			t.Run(r.name()+"/"+v.Name, func(t *testing.T) { r.run(t, endpoints[0], endpoints[1], v.IPv6) })
		}
	}
	// The client asks for a connection in the default mode, and the server replies in that.
	rping := cmExchange{name: "rping", server: "rping -s -a SELF -C 100 -S 5000 -V", client: "rping -c -a PEER -C 100 -S 5000 -V"}
	for _, v := range harness.IPVersions {
		t.Run("rping/"+v.Name, func(t *testing.T) { rping.run(t, endpoints[0], endpoints[1], v.IPv6) })
	}
	// A group is joined in the default mode, too.
	for i, group := range []string{"239.77.0.10", "ff0e::4d:10"} {
		v := harness.IPVersions[i]
		mckey := cmExchange{name: "mckey", server: "mckey -m " + group + " -b SELF -C 4", client: "mckey -s -m " + group + " -b SELF -C 4",
			repeatClient: true, want: "return status 0"}
		t.Run("mckey/"+v.Name, func(t *testing.T) { mckey.run(t, endpoints[0], endpoints[1], v.IPv6) })
	}
	stop()
	checkRoCEv1(t, file)
}

// startTcpdump writes the frames on an interface of a namespace to a file until stop is called.
func startTcpdump(t *testing.T, ns, iface, file string) (stop func()) {
	t.Helper()
	cmd := harness.InNamespace(ns)(t.Context(), "tcpdump", "-i", iface, "-B", "65536", "-U", "-w", file,
		"ether", "proto", "0x8915", "or", "udp", "port", "4791")
	job := harness.StartJob(t, cmd)
	for limit := time.Now().Add(harness.StartLimit); !strings.Contains(job.Output(), "listening on"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("tcpdump does not begin: %s", job.Output())
		}
	}
	return func() {
		time.Sleep(100 * time.Millisecond) // for the packets that the kernel has not passed on
		cmd.Process.Signal(unix.SIGTERM)
		out, err := job.Wait()
		if err != nil {
			t.Errorf("tcpdump: %v\n%s", err, out)
		}
	}
}

// checkRoCEv1 checks the packets in a file, as tshark dissects them.
func checkRoCEv1(t *testing.T, file string) {
	t.Helper()
	out, err := exec.Command("tshark", "-r", hideEtherTypes(t, file), "--disable-heuristic", "rpcrdma_infiniband", "-T", "fields",
		"-e", "eth.type", "-e", "infiniband.grh.nxthdr", "-e", "infiniband.grh.sgid", "-e", "infiniband.bth.opcode", "-e", "infiniband.invariant.crc", "-e", "frame.protocols").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	frames := harness.Frames(t, file)
	if len(frames) != len(lines) || len(frames) < 1000 {
		t.Fatalf("%d frames, of which tshark dissects %d", len(frames), len(lines))
	}
	sources, opcodes := map[string]int{}, map[string]int{}
	for i, line := range lines {
		f := strings.Split(line, "\t")
		if len(f) != 6 || f[0] != "0x8915" || f[1] != "27" || !strings.HasPrefix(f[5], "eth:ethertype:infiniband") {
			t.Fatalf("packet %d: %s", i+1, line)
		}
		sources[f[2]]++
		opcodes[f[3]]++
		got, want := roceV1ICRC(frames[i].Data)
		if got != want || f[4] != fmt.Sprintf("0x%08x", want) && !isXRC(f[3]) {
			t.Fatalf("packet %d has the ICRC %#08x, according to tshark %s, want %#08x\n%s", i+1, got, f[4], want, hex.Dump(frames[i].Data))
		}
	}
	t.Logf("%d packets, from %v, with opcodes %v", len(lines), sources, opcodes)
	for _, s := range []string{"::ffff:10.78.9.1", "::ffff:10.78.9.2", "fd00:78:9::1", "fd00:78:9::2"} {
		if sources[s] < 100 {
			t.Errorf("%d packets from %s", sources[s], s)
		}
	}
}

// isXRC reports whether an opcode is one of XRC, of whose packets tshark 4.0 does not show the
// ICRC.
func isXRC(opcode string) bool {
	n, err := strconv.Atoi(opcode)
	return err == nil && n>>5 == 5
}

// hideEtherTypes copies a capture, and changes what tshark 4.0 takes for an Ethernet frame: payload
// whose first two bytes are an EtherType and the next two zero, as a number of a program may be. It
// would not show the ICRC of such a packet.
func hideEtherTypes(t *testing.T, file string) string {
	t.Helper()
	const fileHeader, recordHeader, ethernet, grh = 24, 16, 14, 40
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for at := fileHeader; at < len(b); {
		frame := b[at+recordHeader:][:binary.LittleEndian.Uint32(b[at+8:])]
		at += recordHeader + len(frame)
		payload := ethernet + grh + packet.Opcode(frame[ethernet+grh]).Info().HeaderLen
		if payload+4 <= len(frame)-packet.ICRCLen && frame[payload+2] == 0 {
			frame[payload+2] = 0xff
		}
	}
	changed := filepath.Join(t.ArtifactDir(), "changed.pcap")
	if err := os.WriteFile(changed, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return changed
}

// roceV1ICRC returns the ICRC in a frame and the correct one, as the numbers that their bytes are
// in network byte order: the CRC-32 over eight bytes of ones and the packet from its GRH on, where
// traffic class, flow label, hop limit and the byte after the P_Key of the BTH are ones (annex
// A16.3, IBTA 7.8.1).
func roceV1ICRC(frame []byte) (got, want uint32) {
	const ethernet, grh = 14, 40
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, frame[ethernet:]...)
	n := int(binary.BigEndian.Uint16(b[8+4:]))
	got = binary.BigEndian.Uint32(b[8+grh+n-4:])
	b = b[:8+grh+n-4]
	b[8] |= 0x0f
	for _, i := range []int{8 + 1, 8 + 2, 8 + 3, 8 + 7, 8 + grh + 4} {
		b[i] = 0xff
	}
	var sum [4]byte
	binary.LittleEndian.PutUint32(sum[:], crc32.ChecksumIEEE(b))
	return got, binary.BigEndian.Uint32(sum[:])
}

// TestUDPLinkHasNoRoCEv1 uses a GID of RoCE v1 on a link of IP packets: a plain NIC has none, and
// one of a persona names the reason.
func TestUDPLinkHasNoRoCEv1(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	ns := harness.VethNamespaces(t)[0]
	for _, c := range []struct {
		nic  string
		gid  int
		want string
	}{
		{"rdma0=udp:rdma0", roceV1Index + 1, "no GID at index 33"},
		{"rdma0=udp:rdma0,persona=connectx-7", 2, "the GID at index 2 is of RoCE v1, which the link of rdma0 does not carry: want one of RoCE v2"},
	} {
		t.Run(c.nic, func(t *testing.T) {
			socket := harness.DaemonIn(t, ns, "--nic", c.nic)
			nic, err := verbs.Open(t.Context(), "rdma0", verbs.WithSocket(socket))
			if err != nil {
				t.Fatal(err)
			}
			defer nic.Close()
			pd, err := nic.AllocPD(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			to := verbs.GIDFromAddr(netip.MustParseAddr("10.78.9.1"))
			if _, err := pd.CreateAH(t.Context(), verbs.AHAttr{GRH: verbs.GlobalRoute{DGID: to, SGIDIndex: uint8(c.gid)}}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			e := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "rdma0", GID: map[bool]string{false: fmt.Sprint(c.gid)}, Host: "127.0.0.1"})
			r := programRun{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20"}
			if out := r.expectErrors(t, e); !strings.Contains(out, "Failed to modify QP to RTR") {
				t.Errorf("ibv_rc_pingpong: %s", out)
			}
		})
	}
}
