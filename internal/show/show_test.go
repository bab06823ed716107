package show

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"softroce/attach"
	"softroce/internal/daemon"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// roundTripped returns a snapshot that was encoded and decoded as JSON, as between daemon and tool.
func roundTripped(t *testing.T) *daemon.Snapshot {
	t.Helper()
	owner := nic.Owner{Client: 3, PID: 42, UID: 1000, Comm: "app"}
	d := nic.Snapshot{
		Name: "nic0", GUID: 0x0011223344556677, PortState: ib.PortActive, ActiveMTU: 1024, Netdev: "eth0", Engines: 2,
		GIDs: []nic.GIDEntry{{Index: 1, GID: nic.GIDOf(netip.MustParseAddr("192.0.2.1")), Netdev: "eth0"},
			{Index: 2, GID: nic.GIDOf(netip.MustParseAddr("192.0.2.3")), Netdev: "eth0.7", VLAN: 7, RoCEv1: true}},
		PKeys:    []uint16{0xffff, 1},
		Contexts: []nic.ContextInfo{{Owner: owner, PDs: 1, MRs: 2, MWs: 3, CQs: 4, SRQs: 5, QPs: 6, AHs: 7, XRCDs: 8, RegisteredBytes: 9, RingBytes: 10, DMs: 11, DeviceMemory: 12}},
		QPs: []nic.QPInfo{{Owner: owner, QPN: 17, RemoteQPN: 18, Type: "RC", State: "RTS", Engine: 1, PathMTU: 1024, SQPSN: 5, RQPSN: 6, PD: 1, SendCQ: 2, RecvCQ: 4, QPCounters: transport.QPCounters{Retransmitted: 5, Timeouts: 1},
			PathInfo: nic.PathInfo{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}, SendPosted: 1, RecvPosted: 2},
			{Owner: owner, QPN: 19, Type: "RC", State: "RESET", SRQ: 8}},
		MRs:    []nic.MRInfo{{Owner: owner, ID: 5, PD: 1, IOVA: 0x1000, Length: 4096, Access: "LOCAL_WRITE", Backing: "process", Unshared: "threads"}},
		CQs:    []nic.CQInfo{{Owner: owner, ID: 2, Entries: 256, Waiting: 1, Users: 2, Notified: 3}},
		PDs:    []nic.PDInfo{{Owner: owner, ID: 1, Users: 4}},
		MWs:    []nic.MWInfo{{Owner: owner, ID: 6, PD: 1, Type: "1"}, {Owner: owner, ID: 7, PD: 1, Type: "2B", Bound: true, QPN: 17, IOVA: 0x1010, Length: 16, Access: "remote_read"}},
		DMs:    []nic.DMInfo{{Owner: owner, ID: 9, Length: 100, Users: 1}},
		SRQs:   []nic.SRQInfo{{Owner: owner, ID: 8, PD: 1, Entries: 64, MaxSGE: 2, Posted: 5, Limit: 8, Users: 1, Number: 3}},
		AHs:    []nic.AHInfo{{Owner: owner, ID: 10, PD: 1, PathInfo: nic.PathInfo{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), RoCEv1: true}, TClass: 8, HopLimit: 64}},
		Groups: []nic.GroupInfo{{Addr: netip.MustParseAddr("239.1.2.3"), QPs: []uint32{20, 21}}},
		Faults: []nic.FaultInfo{{ID: 5, Line: 2, Rule: "drop nth 3", Matched: 9, Acted: 1}},
	}
	d.Counters.Link.TxPackets = 7
	d.Counters.RxOpcode[0x11] = 8
	d.Counters.NAKSent[0] = 9
	d.Counters.TxStalled = 10
	down := nic.Snapshot{Name: "nic1", PortState: ib.PortDown, Engines: 1, LinkError: "network is down"}
	b, err := json.Marshal(daemon.NewSnapshot(attach.Snapshot{PID: 1, Devices: []nic.Snapshot{d, down}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	var s daemon.Snapshot
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func TestWriteTextPrintsOneLinePerObject(t *testing.T) {
	s := roundTripped(t)
	for kind, want := range map[string]string{
		"devices": `link nic0/1 state ACTIVE physical_state LINK_UP  netdev eth0 mtu 1024 node_guid 0011:2233:4455:6677 engines 2 clients 1
    gid 1 192.0.2.1
    gid 2 192.0.2.3 vlan 7 RoCE v1
    pkey 0 0xffff
    pkey 1 0x0001
link nic1/1 state DOWN physical_state DISABLED netdev - mtu 0 node_guid 0000:0000:0000:0000 engines 1 clients 0
    error network is down
`,
		"qp": `link nic0/1 lqpn 17 rqpn 18 type RC state RTS   rq-psn 6 sq-psn 5 mtu 1024 path 192.0.2.1 > 192.0.2.2 sq 1 rq 2 pdn 1 send_cqn 2 recv_cqn 4 srqn - engine 1 client 3 pid 42 comm app retransmitted 5 timeouts 1
link nic0/1 lqpn 19 rqpn 0  type RC state RESET rq-psn 0 sq-psn 0 mtu 0    path -                     sq 0 rq 0 pdn - send_cqn - recv_cqn - srqn 8 engine 0 client 3 pid 42 comm app
`,
		"mr":  "link nic0/1 mrn 5 iova 0x1000 length 4096 access LOCAL_WRITE pdn 1 dmn - backing process unshared threads client 3 pid 42 comm app\n",
		"cq":  "link nic0/1 cqn 2 cqe 256 waiting 1 users 2 events 3 overrun false client 3 pid 42 comm app\n",
		"ctx": "link nic0/1 pd 1 mr 2 mw 3 cq 4 srq 5 qp 6 ah 7 xrcd 8 dm 11 registered 9 rings 10 device_memory 12 client 3 pid 42 comm app\n",
		"pd":  "link nic0/1 pdn 1 users 4 client 3 pid 42 comm app\n",
		"mw": `link nic0/1 mwn 6 type 1 bound false lqpn - iova 0x0 length 0 access - pdn 1 client 3 pid 42 comm app
link nic0/1 mwn 7 type 2B bound true lqpn 17 iova 0x1010 length 16 access remote_read pdn 1 client 3 pid 42 comm app
`,
		"dm":     "link nic0/1 dmn 9 length 100 users 1 client 3 pid 42 comm app\n",
		"srq":    "link nic0/1 srqn 8 wr 64 sge 2 posted 5 limit 8 users 1 pdn 1 cqn - xrc_srqn 3 client 3 pid 42 comm app\n",
		"ah":     "link nic0/1 ahn 10 path 192.0.2.1 > 192.0.2.2 tclass 8 hop_limit 64 pdn 1 client 3 pid 42 comm app roce v1\n",
		"mcast":  "link nic0/1 group 239.1.2.3 lqpn 20,21\n",
		"faults": "link nic0/1 id 5 line 2 matched 9 acted 1 overflowed 0 rule drop nth 3\n",
	} {
		var b strings.Builder
		if err := WriteText(&b, s, kind, Options{}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if squeeze(b.String()) != squeeze(want) {
			t.Errorf("%s:\n%s\nwant\n%s", kind, b.String(), want)
		}
	}
}

// squeeze reduces the padding of columns to single spaces.
func squeeze(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestWriteTextPrintsOneLinePerCounter(t *testing.T) {
	var b strings.Builder
	if err := WriteText(&b, roundTripped(t), "counters", Options{All: true}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"link nic0/1 port_xmit_packets 7\n", "link nic0/1 rx_opcode RC_ACKNOWLEDGE 8\n", "link nic0/1 nak_sent psn_sequence_error 9\n",
		"link nic0/1 drop tx_stalled 10\n", "link nic1/1 port_xmit_packets 0\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("counters lack %q:\n%s", want, b.String())
		}
	}
}

func TestWriteTextOmitsCountersThatAreZero(t *testing.T) {
	var b strings.Builder
	before, now := roundTripped(t), roundTripped(t)
	now.Devices[0].Counters.Values["port_xmit_packets"] += 100
	if err := WriteText(&b, now, "counters", Options{Before: before}); err != nil {
		t.Fatal(err)
	}
	want := "link nic0/1 port_xmit_packets 107 +100\nlink nic0/1 port_xmit_discards 10\nlink nic0/1 rx_opcode RC_ACKNOWLEDGE 8\nlink nic0/1 nak_sent psn_sequence_error 9\nlink nic0/1 drop tx_stalled 10\n"
	if got := squeeze(b.String()); got != strings.TrimSuffix(want, "\n") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestSelectReturnsObjectsWithLinks(t *testing.T) {
	s := roundTripped(t)
	for kind, want := range map[string]string{
		"qp":       `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","lqpn":17,"rqpn":18,"type":"RC","state":"RTS"`,
		"mr":       `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","mrn":5,"pdn":1,"iova":"0x1000","length":4096`,
		"devices":  `{"ifname":"nic0","port":1,"state":"ACTIVE"`,
		"counters": `{"ifname":"nic0","port":1,"values":{`,
		"ctx":      `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","pds":1,"qps":6`,
		"pd":       `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","pdn":1,"users":4}]`,
		"mw":       `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","mwn":6,"pdn":1,"type":"1","bound":false`,
		"srq":      `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","srqn":8,"pdn":1,"entries":64,"max_sge":2,"posted":5,"limit":8`,
		"ah":       `{"ifname":"nic0","port":1,"client":3,"pid":42,"uid":1000,"comm":"app","ahn":10,"pdn":1,"src":"192.0.2.1","dst":"192.0.2.2"`,
		"mcast":    `{"ifname":"nic0","port":1,"group":"239.1.2.3","lqpns":[20,21]}]`,
		"faults":   `{"ifname":"nic0","port":1,"id":5,"line":2,"rule":"drop nth 3","matched":9,"acted":1,"overflowed":0}]`,
	} {
		list, err := Select(s, kind)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(list)
		if err != nil || !strings.HasPrefix(string(b), "["+want) {
			t.Errorf("%s: %v, %s", kind, err, b)
		}
	}
	if _, err := Select(s, "lid"); err == nil || !strings.Contains(err.Error(), "want one of devices, ctx, pd, ") {
		t.Errorf("lid: %v", err)
	}
}
