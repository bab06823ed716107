package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/nicspec"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "softroce.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigFileSetsEveryField(t *testing.T) {
	c, err := ReadConfig(writeConfig(t, `
# two NICs
nics:
  - a=fabric:192.0.2.1
  - b=packet:eth0
socket: /tmp/s.sock
socket-mode: 0600
socket-group: "0"
metrics: :9091
web: :9095
capture: all.pcapng
fault: f.txt
engines: 2
spin: 20us
limits:
  qps: 7
  mrs: 8
  cqs: 9
  pds: 10
  ahs: 11
  srqs: 6
  groups: 5
  registered: 1GiB
  rings: 64M
  connections: 12
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(c.NICs) != 2 || c.NICs[0].String() != "a=fabric:192.0.2.1/24" || c.NICs[1].String() != "b=packet:eth0" {
		t.Errorf("NICs: %v", c.NICs)
	}
	c.NICs = nil
	want := Config{
		Socket: "/tmp/s.sock", SocketMode: 0o600, SocketGroup: "0", Metrics: "127.0.0.1:9091", Web: "127.0.0.1:9095", Capture: "all.pcapng",
		Fault: "f.txt", Engines: 2, Spin: 20 * time.Microsecond,
		Limits: attach.Limits{Connections: 12, PDs: 10, CQs: 9, QPs: 7, MRs: 8, AHs: 11, SRQs: 6, Groups: 5, Registered: 1 << 30, Rings: 64 << 20},
	}
	if got, want := sprint(c), sprint(want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestConfigFileNamesTheFabric(t *testing.T) {
	c, err := ReadConfig(writeConfig(t, "fabric: "+writeTopology(t, 2)))
	if err == nil {
		err = c.Validate()
	}
	if err != nil || len(c.NICs) != 2 || c.NICs[1].String() != "n1=fabric:192.0.2.2/24,2001:db8::2/64,cc=swift" {
		t.Errorf("NICs %v, %v", c.NICs, err)
	}
}

func TestEmptyConfigFileMeansDefaults(t *testing.T) {
	c, err := ReadConfig(writeConfig(t, "# nothing\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(c.NICs) != 2 || c.NICs[0].Name != "softroce0" || c.Engines != 1 {
		t.Errorf("got %+v", c)
	}
}

func TestCaptureOfAConfigFileMayBeEmptyOrStandardOutput(t *testing.T) {
	for text, want := range map[string]string{`""`: "", `"-"`: "-", `"-,count=1"`: "-,count=1"} {
		if c, err := ReadConfig(writeConfig(t, "capture: "+text+"\n")); err != nil || c.Capture != want {
			t.Errorf("%s: %q, %v; want %q", text, c.Capture, err, want)
		}
	}
}

func TestConfigErrorsNameFileAndLine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "engines: 1\nsokket: /tmp/x\n", `softroce.yaml:2: key "sokket" is unknown here; did you mean "socket"?`},
		{"unknown limit", "limits:\n  qps: 1\n  queues: 2\n", `softroce.yaml:3: key "queues" is unknown`},
		{"bad NIC", "nics:\n- a=fabric\n- b=cable:x\n", `softroce.yaml:3: NIC b: link "cable:x": unknown kind`},
		{"bad duration", "spin: 20\n", `softroce.yaml:1: duration "20": want a number and a unit`},
		{"spin before it began", "spin: -1s\n", `softroce.yaml:1: spin -1s: want 0 or more`},
		{"bad mode", "socket-mode: 999\n", `softroce.yaml:1: socket mode "999"`},
		{"bad count", "limits:\n  qps: -1\n", `softroce.yaml:2: "-1": want a number of at least 1`},
		{"bad size", "limits:\n  rings: many\n", `softroce.yaml:2: size "many"`},
		{"not a number", "engines: two\n", `softroce.yaml:1: "two": want a number of at least 1`},
		{"not a map", "- a\n- b\n", "softroce.yaml:1: want keys with values"},
		{"text for all", "a\n", "softroce.yaml:1: want keys with values"},
		{"number for a list", "engines: 1\nnics: 1\n", "softroce.yaml:2: want a list"},
		{"number for a map", "limits: 1\n", "softroce.yaml:1: want keys with values"},
		{"map for a value", "nics:\n  - name: a\n", "softroce.yaml:2: want a single value"},
		{"twice", "engines: 1\nengines: 2\n", "softroce.yaml:2: "},
		{"syntax", "engines: [1\n", "softroce.yaml:1: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadConfig(writeConfig(t, c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want …%s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestConfigRejectsContradictions(t *testing.T) {
	nic := func(s string) nicspec.NIC {
		n, err := nicspec.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		name string
		c    Config
		want string
	}{
		{"same name", Config{NICs: []nicspec.NIC{nic("a=fabric"), nic("a=fabric")}}, "a is configured twice"},
		{"engines", Config{Engines: -1}, "engines -1: want 1 to"},
		{"metrics", Config{Metrics: "9091"}, "want HOST:PORT"},
		{"web", Config{Web: "9095"}, `web address "9095": want HOST:PORT`},
		{"metrics port", Config{Metrics: "localhost:http!"}, "0 to 65535"},
		{"mode", Config{SocketMode: 0o4777}, "permission bits"},
	} {
		if err := c.c.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want …%s", c.name, err, c.want)
		}
	}
}

func TestParseBytesAcceptsUnits(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "65536": 65536, "64K": 65536, "64KiB": 65536, "1 MiB": 1 << 20, "2G": 2 << 30, "7B": 7} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "K", "-1", "1.5M", "99999999999T", "1X"} {
		if _, err := ParseBytes(in); err == nil {
			t.Errorf("%q: accepted", in)
		}
	}
}

func sprint(c Config) string { return fmt.Sprintf("%+v", c) }
