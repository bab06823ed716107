package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/nicspec"
	"softroce/packet"
	"softroce/verbs"
)

// testTimeout bounds operations that should take milliseconds. It allows for a loaded machine.
const testTimeout = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// start starts a daemon on a socket in a new directory with a short path.
func start(t *testing.T, c Config) *Daemon {
	t.Helper()
	d, err := Start(withSocket(t, c), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func withSocket(t *testing.T, c Config) Config {
	dir, err := os.MkdirTemp("", "srd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.Socket = filepath.Join(dir, "s")
	return c
}

// open opens a NIC of d.
func open(t *testing.T, d *Daemon, device string) *verbs.Context {
	t.Helper()
	c, err := verbs.Open(testContext(t), device, verbs.WithSocket(d.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// endpoint is a queue pair with memory.
type endpoint struct {
	qp *verbs.QP
	cq *verbs.CQ
	mr *verbs.MR
}

func newEndpoint(t *testing.T, c *verbs.Context) endpoint {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	pd, err := c.AllocPD(t.Context())
	must(err)
	buf, err := c.AllocBuffer(1 << 16)
	must(err)
	mr, err := pd.RegMR(t.Context(), buf.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	must(err)
	cq, err := c.CreateCQ(t.Context(), 16, nil)
	must(err)
	qp, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	must(err)
	return endpoint{qp, cq, mr}
}

// connect connects two endpoints.
func connect(t *testing.T, a, b endpoint) {
	t.Helper()
	for _, x := range [][2]endpoint{{a, b}, {b, a}} {
		there, err := x[1].qp.Info(t.Context(), verbs.AnyGID)
		if err == nil {
			err = x[0].qp.Connect(testContext(t), there, verbs.DefaultConnectOptions())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// write writes n bytes from a to b, waits for the completion and returns it.
func write(t *testing.T, a, b endpoint, n int) verbs.WC {
	t.Helper()
	err := a.qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cq.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if n, err := a.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Err() != nil {
		t.Fatalf("%d completions, %v, %v", n, err, wc[0].Err())
	}
	return wc[0]
}

func TestDefaultNICsAreTwoOnAFabric(t *testing.T) {
	d := start(t, Config{})
	devices, err := verbs.Devices(testContext(t), verbs.WithSocket(d.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 2 || devices[0].Name != "softroce0" || devices[1].Name != "softroce1" {
		t.Fatalf("devices: %+v", devices)
	}
	var ready strings.Builder
	if err := d.WriteReady(&ready); err != nil {
		t.Fatal(err)
	}
	want := "softroce0 on fabric: state ACTIVE, path MTU 4096, 192.0.2.1, 2001:db8::1\n" +
		"softroce1 on fabric: state ACTIVE, path MTU 4096, 192.0.2.2, 2001:db8::2\n" +
		"socket " + d.Socket() + "\n"
	if ready.String() != want {
		t.Errorf("ready lines:\n%s", ready.String())
	}
}

func TestNICsOfARangeHaveTheirNUMANodes(t *testing.T) {
	c, err := ReadConfig(writeConfig(t, "nics:\n  - mlx5_[0-7]=fabric:10.1.[1-8].1,persona=connectx-7,numa=[0,0,0,0,1,1,1,1]\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := start(t, c)
	client, err := control.Dial(t.Context(), d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	p, err := client.Call(t.Context(), control.Request{Name: "open tree", Op: abi.OpOpenTree, Want: 1})
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", p.FDs[0]))
	p.CloseFDs()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var nodes string
	for i := range 8 {
		dev := fmt.Sprintf("sys/class/infiniband/mlx5_%d/", i)
		node, err := root.ReadFile(dev + "device/numa_node")
		if err != nil {
			t.Error(err)
		}
		nodes += strings.TrimSpace(string(node))
		// Index 3 is RoCE v2 with the first address, after two GIDs of the link-local address.
		if gid, err := root.ReadFile(dev + "ports/1/gids/3"); string(gid) != fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a01:%02x01\n", i+1) {
			t.Errorf("%s has GID %s (%v)", dev, gid, err)
		}
	}
	if nodes != "00001111" {
		t.Errorf("NUMA nodes %s, want 00001111", nodes)
	}
}

func TestNICsOfDifferentEnginesReachEachOther(t *testing.T) {
	d := start(t, Config{Engines: 2, Spin: -1})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	copy(a.mr.Bytes(), "between engines")
	write(t, a, b, 1<<16)
	if got := string(b.mr.Bytes()[:15]); got != "between engines" {
		t.Errorf("got %q", got)
	}
}

// writeTopology writes a topology file of NICs n0, n1, … at one switch.
func writeTopology(t *testing.T, nics int) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "star.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "rate: 1G\nnic: {congestion: swift}\nstar: {nics: %d}\n", nics), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFabricOfSwitches(t *testing.T) {
	for _, engines := range []int{1, 2} {
		d := start(t, Config{Fabric: writeTopology(t, 3), Engines: engines})
		a, b := newEndpoint(t, open(t, d, "n0")), newEndpoint(t, open(t, d, "n2"))
		connect(t, a, b)
		copy(a.mr.Bytes(), "through a switch")
		write(t, a, b, 1<<16)
		if got := string(b.mr.Bytes()[:16]); got != "through a switch" {
			t.Errorf("got %q", got)
		}
		if got := d.Snapshot().Devices[1].Congestion.Algorithm; got != "swift" {
			t.Errorf("congestion control %s, want that of the topology", got)
		}
		frames := map[string]uint64{}
		for _, p := range d.Snapshot().Ports {
			if frames[p.Name] = p.Frames; p.Rate != 1e9 {
				t.Errorf("%s has %d b/s", p.Name, p.Rate)
			}
		}
		if len(frames) != 6 || frames["n0"] < 16 || frames["switch:n2"] != frames["n0"] || frames["n2"] == 0 || frames["n1"] != 0 {
			t.Errorf("%d engines: frames sent %v", engines, frames)
		}
	}
}

func TestCloseNotifiesClients(t *testing.T) {
	d := start(t, Config{})
	c := open(t, d, "")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	e, err := c.AsyncEvent(testContext(t))
	if err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("event %v, %v; want DEVICE_FATAL", e.EventType, err)
	}
	if _, err := os.Stat(d.Socket()); !os.IsNotExist(err) {
		t.Errorf("the socket still exists: %v", err)
	}
	if _, err := control.Dial(testContext(t), d.Socket()); err == nil {
		t.Error("the metrics server still replies")
	}
}

func TestFailedStartReportsReasonAndCleansUp(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	fault := filepath.Join(t.TempDir(), "fault")
	if err := os.WriteFile(fault, []byte("drop psn=1\nexplode\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		c    Config
		want []string
	}{
		{"interface", Config{NICs: []nicspec.NIC{{Name: "x", Kind: nicspec.Packet, Interface: "nosuch0"}}}, []string{"NIC x", "nosuch0", "no such interface", "(have: ", "lo"}},
		{"udp interface", Config{NICs: []nicspec.NIC{{Name: "x", Kind: nicspec.UDP, Interface: "nosuch0"}}}, []string{"NIC x", "nosuch0", "(have: "}},
		{"metrics", Config{Metrics: busy.Addr().String()}, []string{"metrics", busy.Addr().String()}},
		{"capture", Config{Capture: "/nosuch/dir/x.pcapng"}, []string{"capture", "/nosuch/dir/x.pcapng"}},
		{"fault", Config{Fault: fault}, []string{fault, "2"}},
		{"no fault", Config{Fault: "/nosuch/f"}, []string{"fault", "/nosuch/f"}},
		{"group", Config{SocketGroup: "nosuchgroup"}, []string{"nosuchgroup"}},
		{"no topology", Config{Fabric: "/nosuch/t.yaml"}, []string{"/nosuch/t.yaml"}},
		{"too many NICs", Config{Fabric: writeTopology(t, 300)}, []string{"star.yaml", "more than 254 NICs", "NAME=fabric:ADDR"}},
		{"not on a fabric", Config{Fabric: writeTopology(t, 3), NICs: []nicspec.NIC{{Name: "n0", Kind: nicspec.UDP, Interface: "lo"}}}, []string{"star.yaml", "no NIC is on a fabric"}},
		{"not in the topology", Config{Fabric: writeTopology(t, 3), NICs: []nicspec.NIC{{Name: "n7", Kind: nicspec.Fabric}}}, []string{"NIC n7", "have: n0, n1, n2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := withSocket(t, c.c)
			d, err := Start(conf, "test", slog.New(slog.DiscardHandler))
			if err == nil {
				d.Close()
				t.Fatal("started")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
			if _, err := os.Stat(conf.Socket); !os.IsNotExist(err) {
				t.Errorf("the socket still exists: %v", err)
			}
		})
	}
}

func TestSecondDaemonOnSocketFails(t *testing.T) {
	d := start(t, Config{})
	if _, err := Start(Config{Socket: d.Socket()}, "test", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("got %v", err)
	}
	open(t, d, "") // the first daemon still works
}

func TestMetricsCountTraffic(t *testing.T) {
	d := start(t, Config{Metrics: "127.0.0.1:0"})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, 8192)
	text := scrape(t, d)
	for _, want := range []string{
		`softroce_build_info{version="test"} 1`,
		`node_infiniband_state_id{device="softroce0",port="1"} 4`,
		`node_infiniband_port_packets_transmitted_total{device="softroce0",port="1"} 2`,
		`node_infiniband_rx_write_requests_total{device="softroce1",port="1"} 1`,
		`softroce_opcode_packets_total{device="softroce0",direction="sent",opcode="RC_WRITE_FIRST",port="1"} 1`,
		`softroce_opcode_packets_total{device="softroce1",direction="received",opcode="RC_WRITE_LAST",port="1"} 1`,
		`softroce_qps{device="softroce0",port="1",state="RTS"} 1`,
		`softroce_naks_total{code="remote_access_error",device="softroce0",direction="sent",port="1"} 0`,
		`softroce_registered_bytes{device="softroce0",port="1"} 65536`,
		`softroce_engine_busy_ratio{engine="0"} `,
		`process_open_fds `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// A browser that opens the server's address finds the metrics, and the daemon prints the URL.
func TestMetricsAreFound(t *testing.T) {
	d := start(t, Config{Metrics: "127.0.0.1:0"})
	if page := get(t, d, "/"); !strings.Contains(page, `href="/metrics"`) {
		t.Errorf("the page is %s", page)
	}
	var ready strings.Builder
	d.WriteReady(&ready)
	if want := "metrics http://" + d.MetricsAddr().String() + "/metrics\n"; !strings.HasSuffix(ready.String(), want) {
		t.Errorf("ready lines:\n%s", ready.String())
	}
	if r, err := http.Get("http://" + d.MetricsAddr().String() + "/metric"); err != nil || r.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %v, %v", r, err)
	}
}

func scrape(t *testing.T, d *Daemon) string {
	t.Helper()
	return get(t, d, "/metrics")
}

func get(t *testing.T, d *Daemon, path string) string {
	t.Helper()
	r, err := http.Get("http://" + d.MetricsAddr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("status %s, %v: %s", r.Status, err, text)
	}
	return string(text)
}

func TestRunCaptureRecordsEachPacketOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "all.pcapng")
	d := start(t, Config{Capture: file})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, 3*4096)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range packets {
		if !p.ICRCOK() {
			t.Errorf("packet %d has a wrong ICRC", p.No)
		}
		got = append(got, p.Opcode.String())
	}
	if s := strings.Join(got, " "); s != "RC_WRITE_FIRST RC_WRITE_MIDDLE RC_WRITE_LAST RC_ACKNOWLEDGE" {
		t.Errorf("captured %s", s)
	}
}

// In a capture, each NIC is one host, and no two packets of an interface have the same time.
func TestCaptureTellsHostsAndPacketsApart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "all.pcapng")
	d := start(t, Config{Capture: file})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, 16*4096) // packets of one batch
	write(t, b, a, 16*4096)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(packets) < 34 {
		t.Errorf("%d packets", len(packets))
	}
	hosts, last := map[string][6]byte{}, map[int]time.Time{}
	for _, p := range packets {
		for addr, mac := range map[string][6]byte{p.Src.String(): p.SrcMAC, p.Dst.String(): p.DstMAC} {
			if known, ok := hosts[addr]; ok && known != mac {
				t.Fatalf("packet %d: %s has the MACs %x and %x", p.No, addr, known, mac)
			}
			hosts[addr] = mac
		}
		if !p.Time.After(last[p.Interface]) {
			t.Errorf("packet %d is of %v, the one before of %v", p.No, p.Time, last[p.Interface])
		}
		last[p.Interface] = p.Time
	}
	if len(hosts) != 2 || hosts["192.0.2.1"] == hosts["192.0.2.2"] || hosts["192.0.2.1"] == [6]byte{} {
		t.Errorf("hosts %v", hosts)
	}
}

func TestClientCapturesStartAndStop(t *testing.T) {
	d := start(t, Config{})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, 1) // before the capture
	file := filepath.Join(t.TempDir(), "some.pcapng")
	ctx, stop := context.WithCancel(testContext(t))
	began := make(chan struct{}, 1000)
	type result struct {
		s   Recorded
		err error
	}
	done := make(chan result)
	go func() {
		s, err := Record(ctx, d.Socket(), RecordOptions{Device: "softroce1", Output: file, Progress: func(control.CaptureState) { began <- struct{}{} }})
		done <- result{s, err}
	}()
	<-began
	write(t, a, b, 2)
	stop()
	r := <-done
	write(t, a, b, 3) // after the capture
	if r.err != nil || r.s.Packets != 2 || r.s.Dropped != 0 {
		t.Fatalf("recorded %+v, %v; want 2 packets", r.s, r.err)
	}
	packets, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	// A capture of one NIC contains both directions.
	if len(packets) != 2 || packets[0].Opcode.Info().Kind != packet.KindWrite || len(packets[0].Payload) != 2 || packets[1].Opcode.Info().Kind != packet.KindAck {
		t.Errorf("captured:\n%v", packets)
	}
}

func TestCaptureOfUnknownNICFails(t *testing.T) {
	d := start(t, Config{})
	file := filepath.Join(t.TempDir(), "none.pcapng")
	_, err := Record(testContext(t), d.Socket(), RecordOptions{Device: "softroce7", Output: file})
	if err == nil || !strings.Contains(err.Error(), "softroce7") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file was not removed: %v", err)
	}
}

func TestFaultProgramForUnknownNICFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lossy.fault")
	if err := os.WriteFile(file, []byte("drop nic softroce1 nth 1\ndrop nic rdma7 nth 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(withSocket(t, Config{Fault: file}), "test", slog.New(slog.DiscardHandler))
	if want := "lossy.fault: line 2: \"rdma7\": no such NIC (have: softroce0, softroce1)"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want …%s", err, want)
	}
}

func TestRejectedCaptureKeepsExistingFile(t *testing.T) {
	d := start(t, Config{})
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	openReader(t, pipe)
	if _, err := Record(testContext(t), d.Socket(), RecordOptions{Device: "softroce7", Output: pipe}); err == nil {
		t.Error("recorded an unknown NIC")
	}
	if _, err := os.Stat(pipe); err != nil {
		t.Errorf("the FIFO was removed: %v", err)
	}
}

func TestCaptureOfAllNICsIsInTimeOrder(t *testing.T) {
	d := start(t, Config{})
	f, err := os.Create(filepath.Join(t.TempDir(), "all.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.tap.start(output{file: f, blocking: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	for range 20 {
		write(t, a, b, 100)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Load(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(packets); i++ {
		if early := packets[i-1].Time.Sub(packets[i].Time); early > 0 {
			t.Fatalf("packet %d, %v, is %v earlier than its predecessor", i, packets[i].Opcode, early)
		}
	}
}

func TestLimitsApplyPerClient(t *testing.T) {
	var c Config
	c.Limits.QPs = 1
	d := start(t, c)
	one, other := open(t, d, ""), open(t, d, "")
	newEndpoint(t, one)
	pd, err := one.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cq, err := one.CreateCQ(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err == nil {
		t.Error("created a second QP beyond the limit")
	}
	newEndpoint(t, other)
}

// What a NIC reports to be, and how fast and with which congestion control it sends, are no part of
// its MAC and of the GUIDs made from that.
func TestOptionsDoNotChangeTheMAC(t *testing.T) {
	plain, err := nicspec.Parse("a=fabric:192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"pkeys=0x8001", "guid=0200:00ff:fe00:0001", "persona=connectx-7", "persona=connectx-7,numa=1", "rate=1G", "delay=1us", "cc=none", "cc=dcqcn+rp_ai_rate=5", "default_roce_mode=v1", "engines=2"} {
		n, err := nicspec.Parse("a=fabric:192.0.2.1," + option)
		if err != nil {
			t.Fatal(err)
		}
		if macOf(n) != macOf(plain) {
			t.Errorf("%s changes the MAC", option)
		}
	}
}
