package nicspec

import (
	"strings"
	"testing"
)

func TestParseAndStringRoundTrip(t *testing.T) {
	for _, s := range []string{
		"softroce0=fabric:192.0.2.1/24,2001:db8::1/64",
		"a=fabric",
		"rdma-eth0=packet:eth0",
		"u0=udp:veth.1",
		"x0=xdp:eth0",
		"any=auto:eth0,pkeys=0xffff",
		"v=fabric:192.0.2.1/24,192.0.2.1/24@7,2001:db8::1/64@4094",
		"p0=packet:eth0,pkeys=0xffff+0x0001",
		"p1=fabric:192.0.2.1/24,mtu=1500,pkeys=0x7fff+0x0000+0x8001",
		"g0=packet:eth0,pkeys=0xffff,guid=0200:00ff:fe00:0001",
		"mlx5_0=packet:eth0,persona=connectx-7,numa=1",
		"c0=fabric:192.0.2.1/24,cc=none",
		"m0=packet:eth0,default_roce_mode=v1,cc=none",
		"c1=packet:eth0,cc=dcqcn+rp_time_reset=300+rp_ai_rate=5",
		"c1=packet:eth0,cc=swift+swift_target_delay=200",
		"s0=fabric:192.0.2.1/24,rate=25G,delay=5µs",
		"s1=udp:eth0,rate=2.3G",
		"s2=udp:eth0,rate=100M,delay=1.5ms",
		"vm=dgram:127.0.0.1:5001,127.0.0.1:5000,10.77.0.20/24,mtu=1500,mac=02:00:00:00:00:07",
		"vm6=dgram:[::1]:5001,[::1]:5000,2001:db8::2/64",
	} {
		n, err := Parse(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got := n.String(); got != s {
			t.Errorf("%s: formatted as %s", s, got)
		}
	}
}

func TestFabricAddressDefaultsPrefixLength(t *testing.T) {
	n, err := Parse("f=fabric:192.0.2.9,2001:db8::9")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.String(), "f=fabric:192.0.2.9/24,2001:db8::9/64"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRangesAreExpandedInStep(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a=fabric", "a=fabric"},
		{"a[7]=fabric", "a7=fabric"},
		{"mlx5_[0-3]=fabric:10.1.[1-4].1,persona=connectx-7,numa=[0,0,1,1]",
			"mlx5_0=fabric:10.1.1.1/24,persona=connectx-7,numa=0 mlx5_1=fabric:10.1.2.1/24,persona=connectx-7,numa=0 " +
				"mlx5_2=fabric:10.1.3.1/24,persona=connectx-7,numa=1 mlx5_3=fabric:10.1.4.1/24,persona=connectx-7,numa=1"},
		{"r[08-10]=fabric:192.0.2.[1,7-8]", "r08=fabric:192.0.2.1/24 r09=fabric:192.0.2.7/24 r10=fabric:192.0.2.8/24"},
		{"vm[0-1]=dgram:[::1]:500[1-2],[::1]:6000,2001:db8::[1-2]/64",
			"vm0=dgram:[::1]:5001,[::1]:6000,2001:db8::1/64 vm1=dgram:[::1]:5002,[::1]:6000,2001:db8::2/64"},
	} {
		nics, err := ParseAll(c.in)
		var got []string
		for _, n := range nics {
			got = append(got, n.String())
		}
		if s := strings.Join(got, " "); s != c.want || err != nil {
			t.Errorf("%s: got %s (%v)\nwant %s", c.in, s, err, c.want)
		}
	}
	if nics, err := ParseAll("a[0-63]=fabric"); len(nics) != 64 || err != nil {
		t.Errorf("a[0-63]: %d NICs, %v", len(nics), err)
	}
}

func TestRangeErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a[3-0]=fabric", `range [3-0]: "3-0": want the lower number first`},
		{"a[]=fabric", `range []: "": want numbers and FIRST-LAST`},
		{"a[0-]=fabric", `range [0-]: "0-": want numbers`},
		{"a[0,,1]=fabric", `range [0,,1]: "": want numbers`},
		{"a[x-z]=fabric", `range [x-z]: "x-z": want numbers`},
		{"a[-1]=fabric", `range [-1]: "-1": want numbers`},
		{"a[0-64]=fabric", "range [0-64]: want at most 64 NICs"},
		{"a[0-31,0-32]=fabric", "range [0-31,0-32]: want at most 64 NICs"},
		{"a[0-65536]=fabric", `"0-65536": want numbers`},
		{"a[0-7]=fabric:10.1.[1-4].1", "range [0-7] has a length of 8 and [1-4] of 4: want equal lengths"},
		{"a[0-1]=fabric:10.1.[1-2].1,persona=rxe,numa=[0]", "range [0-1] has a length of 2 and [0] of 1"},
		{"a[0-1=fabric", `name "a[0-1"`},
		{"a[0-1]=fabric:10.1.25[5-6].1", `NIC a1: address "10.1.256.1"`},
	} {
		if nics, err := ParseAll(c.in); err == nil || !strings.Contains(err.Error(), c.want) || nics != nil {
			t.Errorf("%s: %d NICs, error %v, want …%s", c.in, len(nics), err, c.want)
		}
	}
}

func TestParseErrorsNameValueAndExpectedForm(t *testing.T) {
	for _, c := range []struct{ in, wrong, right string }{
		{"softroce0", `"softroce0" has no link`, "NAME=LINK"},
		{"=fabric", `name ""`, "letters"},
		{"a b=fabric", `name "a b"`, "letters"},
		{"a=token:eth0", `"token:eth0"`, "packet:IFACE"},
		{"a=packet:", `"packet:"`, "packet:IFACE"},
		{"a=udp", `"udp"`, "udp:IFACE"},
		{"a=fabric:192.0.2.1@4095", `"4095"`, "1 to 4094"},
		{"a=fabric:192.0.2.1@", `""`, "1 to 4094"},
		{"a=xdp:", `"xdp:"`, "xdp:IFACE"},
		{"a=udp:eth0,192.0.2.1", `"192.0.2.1"`, "pkeys="},
		{"a=fabric:pkeys=x", `"x"`, "0xffff+0x8001"},
		{"a=fabric:pkeys=12,pkeys=13", `"pkeys=13"`, "pkeys is given twice"},
		{"a=fabric:rate=25G,delay=5us,rate=25G", `"rate=25G"`, "rate is given twice"},
		{"a=packet:eth0,persona=rxe,persona=e810", `"persona=e810"`, "persona is given twice"},
		{"a=fabric:pkeys=0x8000", "0x8000", "names no partition"},
		{"a=fabric:pkeys=0xffff+0xffff", "0xffff", "twice"},
		{"a=fabric:guid=0200:00ff:fe00", `"0200:00ff:fe00"`, "0200:00ff:fe00:0001"},
		{"a=fabric:persona=conectx-7", `"conectx-7"`, `did you mean "connectx-7"`},
		{"a=fabric:persona=", `""`, "the name of a preset or of a file"},
		{"a=fabric:persona=connectx-7,numa=x", `"x"`, "the number of a NUMA node"},
		{"a=fabric:persona=connectx-7,numa=1024", `"1024"`, "at most 1023"},
		{"a=fabric:numa=1", "numa", "needs a persona"},
		{"a=fabric:persona=rxe,numa=1", "rxe", "needs a PCI device"},
		{"a=fabric:rate=25", `"25"`, "1M to 1000G"},
		{"a=fabric:rate=1K", `"1K"`, "1M to 1000G"},
		{"a=fabric:rate=-1G", `"-1G"`, "1M to 1000G"},
		{"a=fabric:rate=2000G", `"2000G"`, "1M to 1000G"},
		{"a=fabric:default_roce_mode=v3", `"v3"`, "v1 or v2"},
		{"a=fabric:cc=dcqnc", `"dcqnc"`, "dcqcn"},
		{"a=fabric:cc=dcqcn+rp_ai_rat=5", `"rp_ai_rat"`, "rp_ai_rate"},
		{"a=fabric:cc=dcqcn+rp_ai_rate=x", `"x"`, "rp_ai_rate"},
		{"a=fabric:cc=dcqcn+np_cnp_dscp=64", "np_cnp_dscp 64", "0 to 63"},
		{"a=fabric:delay=5", `"5"`, "such as 5us"},
		{"a=fabric:delay=-5us", `"-5us"`, "such as 5us"},
		{"a=fabric:delay=11s", `"11s"`, "up to 10s"},
		{"a=packet:eth0,guid=0x20000fffe000001", `"0x20000fffe000001"`, "groups of four"},
		{"a=fabric:guid=0000:0000:0000:0000", `"0000:0000:0000:0000"`, "not zero"},
		{"a=fabric:pkeys=0", `"0"`, "no key in it"},
		{"a=fabric:192.0.2", `"192.0.2"`, "192.0.2.1"},
		{"a=fabric:::ffff:192.0.2.7", `"::ffff:192.0.2.7"`, "192.0.2.1"},
		{"a=dgram:127.0.0.1:1,127.0.0.1:2,::ffff:192.0.2.7/96", `"::ffff:192.0.2.7/96"`, "192.0.2.1"},
		{"a=fabric:192.0.2.1,mtu=12", `"12"`, "336 to 65535"},
		{"a=fabric:192.0.2.1,speed=9", `"speed=9"`, "mtu=BYTES"},
		{"a=fabric:mac=01:00:00:00:00:00", "01:00", "want a unicast address"},
		{"a=fabric:mac=02:00", "02:00", "six bytes"},
		{"a=dgram:127.0.0.1:1", "incomplete", "REMOTE:PORT"},
		{"a=dgram:localhost,127.0.0.1:2,10.0.0.1/8", `"localhost"`, "ADDR:PORT"},
		{"a=dgram:127.0.0.1:1,127.0.0.1:2,10.0.0.1", `"10.0.0.1"`, "10.0.0.1/24"},
	} {
		_, err := Parse(c.in)
		if err == nil {
			t.Errorf("%s: accepted", c.in)
		} else if !strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), c.right) {
			t.Errorf("%s: error %q lacks %q or %q", c.in, err, c.wrong, c.right)
		}
	}
}
