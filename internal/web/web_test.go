package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/capture"
	"softroce/internal/daemon"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A page is a daemon with its page, for a test.
type page struct {
	*Server
	t *testing.T
}

// start starts a daemon with two NICs, a rule that drops the third WRITE of softroce0, and others.
func start(t *testing.T, rules ...string) *page {
	t.Helper()
	dir := t.TempDir()
	program := strings.Join(append([]string{"drop nic softroce0 send kind write nth 3"}, rules...), "\n")
	file := filepath.Join(dir, "rules")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Start(daemon.Config{Socket: filepath.Join(dir, "s"), Fault: file}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	s, err := Serve(d, "127.0.0.1:0", "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &page{s, t}
}

// do sends a request and returns the status and the body of the reply.
func (s *page) do(method, path, token, body string, headers ...string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// get decodes the reply to a request that succeeds.
func (s *page) get(method, path, body string, to any) {
	s.t.Helper()
	status, text := s.do(method, path, s.token, body)
	if err := json.Unmarshal([]byte(text), to); status != http.StatusOK || err != nil {
		s.t.Fatalf("%s %s: %d, %v: %s", method, path, status, err, text)
	}
}

func (s *page) table(st *state, name string) [][]string {
	s.t.Helper()
	for _, t := range st.Tables {
		if t.Name == name {
			return t.Rows
		}
	}
	s.t.Fatalf("no table %q", name)
	return nil
}

// connect connects two queue pairs, and returns the first, which WRITEs to the second.
func (s *page) connect() (x, y *verbstest.Endpoint) {
	s.t.Helper()
	open := func(nic string) *verbs.Context {
		c, err := verbs.Open(s.t.Context(), nic, verbs.WithSocket(s.daemon.Socket()))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { c.Close() })
		return c
	}
	return verbstest.ConnectedRC(s.t, open("softroce0"), open("softroce1"))
}

func write(x, y *verbstest.Endpoint) {
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 64), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	x.Completion()
}

func TestPageShowsWhatTheDaemonHas(t *testing.T) {
	s := start(t)
	x, y := s.connect()
	for range 5 {
		write(x, y)
	}
	var st state
	s.get("GET", "state", "", &st)
	if !strings.Contains(st.Summary, "2 NICs") || !st.Operator || !slices.Equal(st.NICs, []string{"softroce0", "softroce1"}) {
		t.Errorf("%+v", st)
	}
	name := fmt.Sprintf("softroce0/%d", x.QPNum())
	if qps := s.table(&st, "Queue pairs"); !slices.ContainsFunc(qps, func(r []string) bool { return r[0] == name && r[2] == "RTS" }) {
		t.Errorf("no %s in %q", name, qps)
	}
	if drops := s.table(&st, "Drops"); !slices.ContainsFunc(drops, func(r []string) bool { return r[0] == "softroce0" && r[1] == "link_fault" && r[2] == "1" }) {
		t.Errorf("drops: %q", drops)
	}
	if rules := s.table(&st, "Fault rules"); !slices.ContainsFunc(rules, func(r []string) bool { return strings.Contains(r[2], "kind write nth 3") && r[4] == "1" }) {
		t.Errorf("fault rules: %q", rules)
	}
	if clients := s.table(&st, "Clients"); len(clients) != 3 {
		t.Errorf("clients: %q", clients)
	}
	var p psns
	path := fmt.Sprintf("psn?nic=softroce0&qpn=%d", x.QPNum())
	s.get("GET", path, "", &p)
	for range 3 {
		write(x, y)
	}
	s.sampler.mu.Lock()
	s.sampler.latest.at = time.Time{} // so that the next request takes a snapshot
	s.sampler.mu.Unlock()
	var later psns
	s.get("GET", path, "", &later)
	if later.Next != (p.Next+3)&0xffffff || later.Unacked != later.Next || later.Retransmitted == 0 || later.State != "RTS" {
		t.Errorf("PSNs %+v, then %+v", p, later)
	}
	if status, text := s.do("GET", "metrics", "", ""); status != http.StatusOK || !strings.Contains(text, "softroce_qps{") {
		t.Errorf("metrics: %d", status)
	}
	for _, path := range []string{"psn?nic=softroce0&qpn=x", "psn?nic=softroce0&qpn=77", "psn?nic=softroce7&qpn=17"} {
		if status, text := s.do("GET", path, s.token, ""); status < 400 || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %d, %q", path, status, text)
		}
	}
}

func TestCaptureIsRecordedAndReported(t *testing.T) {
	s := start(t)
	x, y := s.connect()
	var c captureInfo
	s.get("POST", "captures", `{"nic": "softroce0", "filter": "kind write"}`, &c)
	if status, text := s.do("GET", "captures/"+c.ID+"/packets.pcapng", "", ""); status != http.StatusConflict || !strings.Contains(text, "stop it first") {
		t.Errorf("a running capture: %d, %s", status, text)
	}
	for range 5 {
		write(x, y)
	}
	s.get("POST", "captures/"+c.ID+"/stop", "", &c)
	if c.Running || c.Packets == 0 || c.Lost != 0 {
		t.Errorf("%+v", c)
	}
	status, text := s.do("GET", "captures/"+c.ID+"/packets.pcapng", "", "")
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	r, err := capture.NewReader(bytes.NewReader([]byte(text)), "packets")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := capture.Decode(io.Discard, r, capture.DecodeOptions{})
	if err != nil || sum.RoCE != int(c.Packets) {
		t.Errorf("%+v, %v, recorded %d", sum, err, c.Packets)
	}
	if status, text := s.do("GET", "captures/"+c.ID+"/report", "", ""); status != http.StatusOK || !strings.Contains(text, `id="verdict"`) {
		t.Errorf("the report: %d, %.200s", status, text)
	}
	var st state
	s.get("GET", "state", "", &st)
	if len(st.Captures) != 1 || st.Captures[0] != c {
		t.Errorf("captures: %+v", st.Captures)
	}
	dir := s.captures.dir
	if status, _ := s.do("DELETE", "captures/"+c.ID, s.token, ""); status != http.StatusNoContent {
		t.Errorf("removing: %d", status)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	s.captures.limit = 3
	s.get("POST", "captures", `{}`, &c)
	for range 5 {
		write(x, y)
	}
	for st.Captures = nil; len(st.Captures) != 1 || st.Captures[0].Running; {
		s.get("GET", "state", "", &st)
	}
	if st.Captures[0].Packets != 3 || st.Captures[0].Error != "" {
		t.Errorf("a capture of three packets: %+v", st.Captures[0])
	}
	for range maxCaptures - 1 {
		s.get("POST", "captures", `{}`, &c)
	}
	for _, bad := range []struct{ body, want string }{
		{`{}`, "remove one first"}, {`{`, "unexpected EOF"}, {`{"filter": "kind nonsense"}`, "nonsense"},
	} {
		if status, text := s.do("POST", "captures", s.token, bad.body); status < 400 || !strings.Contains(text, bad.want) || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %d, %q", bad.body, status, text)
		}
	}
	if status, _ := s.do("DELETE", "captures/"+c.ID, s.token, ""); status != http.StatusNoContent {
		t.Errorf("removing a running capture: %d", status)
	}
	if status, text := s.do("POST", "captures", s.token, `{"nic": "eth9"}`); status != http.StatusBadRequest || !strings.Contains(text, "no such NIC (have: softroce0, softroce1)") {
		t.Errorf("an unknown NIC: %d, %q", status, text)
	}
	s.Close()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the captures are still there: %v", err)
	}
	if _, err := os.Stat(s.TokenFile()); !os.IsNotExist(err) {
		t.Errorf("the token is still there: %v", err)
	}
}

func TestWithoutTokenThePageIsReadOnly(t *testing.T) {
	s := start(t)
	x, _ := s.connect()
	for _, token := range []string{"", "wrong", s.token + "x", s.token[1:]} {
		for _, r := range []struct{ method, path string }{{"POST", "captures"}, {"POST", "captures/x/stop"}, {"DELETE", "captures/x"}} {
			if status, text := s.do(r.method, r.path, token, "{}"); status != http.StatusUnauthorized || !strings.HasSuffix(text, s.TokenFile()+"\n") || strings.Count(text, "\n") != 1 {
				t.Errorf("%s %s with %q: %d, %q", r.method, r.path, token, status, text)
			}
		}
		if token != "" {
			if status, _ := s.do("GET", "state", token, ""); status != http.StatusUnauthorized {
				t.Errorf("state with %q: %d", token, status)
			}
		}
	}
	status, text := s.do("GET", "state", "", "")
	var st state
	if err := json.Unmarshal([]byte(text), &st); status != http.StatusOK || err != nil || st.Operator || st.Captures != nil {
		t.Errorf("state: %d, %v, %s", status, err, text)
	}
	name := fmt.Sprintf("softroce0/%d", x.QPNum())
	if !slices.ContainsFunc(s.table(&st, "Queue pairs"), func(r []string) bool { return r[0] == name && r[4] == "-" }) {
		t.Errorf("rates, which tell PSNs, are shown: %s", text)
	}
	if status, _ := s.do("GET", fmt.Sprintf("psn?nic=softroce0&qpn=%d", x.QPNum()), "", ""); status != http.StatusForbidden {
		t.Errorf("PSNs: %d", status)
	}
	if st, err := os.Stat(s.TokenFile()); err != nil || st.Mode() != 0o600 {
		t.Errorf("the token's file: %v, %v", st, err)
	}
	if text, err := os.ReadFile(s.TokenFile()); err != nil || string(text) != s.token+"\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// Pages of other hosts, whose names may resolve to the daemon's address, neither read nor write.
func TestOtherOriginsAreRefused(t *testing.T) {
	s := start(t)
	_, port, _ := net.SplitHostPort(s.addr.String())
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "[::1]:" + port: 200, "localhost": 200,
		"example.com:" + port: 421, "example.com": 421, "127.0.0.1.example.com": 421, "": 421,
	} {
		for _, path := range []string{"", "state", "metrics"} {
			if host == "" {
				continue // the client fills in the host
			}
			if status, text := s.do("GET", path, "", "", "Host", host); status != want {
				t.Errorf("%q of host %q: %d, %s", path, host, status, text)
			}
		}
	}
	for _, origin := range []string{"http://example.com", "null", "http://127.0.0.1:1"} {
		if status, text := s.do("POST", "captures", s.token, "{}", "Origin", origin); status != http.StatusForbidden {
			t.Errorf("origin %s: %d, %s", origin, status, text)
		}
	}
	if status, text := s.do("POST", "captures", s.token, "{}", "Origin", strings.TrimSuffix(s.URL(), "/")); status != http.StatusOK {
		t.Errorf("its own origin: %d, %s", status, text)
	}
}

func TestAddressInUse(t *testing.T) {
	s := start(t)
	_, err := Serve(s.daemon, s.addr.String(), "test", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), s.addr.String()) || !strings.Contains(err.Error(), "address already in use") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(s.TokenFile()); err != nil {
		t.Errorf("the token of the first server: %v", err)
	}
}

// Requests that come together share a snapshot.
func TestViewersShareSnapshots(t *testing.T) {
	taken := 0
	s := sampler{take: func() daemon.Snapshot { taken++; return daemon.Snapshot{} }}
	for range 100 {
		s.newest()
	}
	s.latest.at = s.latest.at.Add(-time.Hour)
	s.newest()
	if taken != 2 {
		t.Errorf("%d snapshots", taken)
	}
}
