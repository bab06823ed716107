package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"softroce/capture"
	"softroce/e2e/harness"
)

// An actor is a rule at a NIC.
type actor struct {
	nic  string
	rule string // its ID
}

// ruleOf finds the rule and the NIC in the text of a comment or a note.
var ruleOf = regexp.MustCompile(`fault rule (\d+): [^(]*\((softroce\d)`)

// actionsIn counts what the comments and notes of a text say.
func actionsIn(text string) map[actor]int {
	m := map[actor]int{}
	for _, f := range ruleOf.FindAllStringSubmatch(text, -1) {
		m[actor{f[2], f[1]}]++
	}
	return m
}

// actionsCounted returns the counters of the rules of a daemon, of those that have acted.
func actionsCounted(t *testing.T, socket string) map[actor]int {
	t.Helper()
	out, err := exec.Command(harness.Binary(t), "--socket", socket, "show", "faults", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var rules []struct {
		Ifname    string
		ID, Acted int
	}
	if err := json.Unmarshal(out, &rules); err != nil {
		t.Fatal(err)
	}
	m := map[actor]int{}
	for _, r := range rules {
		if r.Acted > 0 {
			m[actor{r.Ifname, fmt.Sprint(r.ID)}] += r.Acted
		}
	}
	return m
}

// A capture has as many comments and notes as the rules have acted, however it was made, and tshark
// shows them.
func TestCapturesSayWhatFaultRulesDid(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns, dir := harness.Namespace(t, "notes"), t.TempDir()
	program := filepath.Join(dir, "fault")
	rules := strings.Join([]string{
		"drop receive kind write skip 20 every 40 count 5", "drop send kind ack skip 3 count 2", "mark send kind write every 50",
		"slow reg_mr 1ms client ib_write_bw", "slow completion 1ms opcode rdma_write skip 2 count 1", "delay 1ms send cm req", "drop receive src 10.0.0.1",
	}, "\n")
	if err := os.WriteFile(program, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	whole, live := filepath.Join(dir, "daemon.pcapng"), filepath.Join(dir, "live.pcapng")
	socket := filepath.Join(dir, "sock")
	d := harness.StartDaemon(t, harness.InNamespace(ns), "-v", "--socket", socket, "--fault", program, "--capture", whole+",snaplen=100")
	harness.OpenNIC(t, d, socket)
	stop := harness.StartCapture(t, socket, live)
	client, server := harness.FabricEndpoints(ns, socket)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	const write = "ib_write_bw -d %s -x 1 -n 500 -s 4096 -p %d"
	serverJob := server.Start(ctx, t, fmt.Sprintf(write, server.Device, port))
	if err := server.WaitListening(ctx, serverJob, port); err != nil {
		t.Fatalf("%v: %s", err, serverJob.Output())
	}
	if out, err := client.Start(ctx, t, fmt.Sprintf(write, client.Device, port)+" "+server.Host).Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	serverJob.Wait()
	want := actionsCounted(t, socket)
	if len(want) < 5 {
		t.Errorf("rules that have acted: %v, want 5 or more", want)
	}
	stop()
	d.Stop(t)
	for _, file := range []string{whole, live} {
		decoded, err := exec.Command(harness.Binary(t), "decode", "--short", file).Output()
		if got := actionsIn(string(decoded)); err != nil || !maps.Equal(got, want) {
			t.Errorf("decode %s: %v, %v; the rules have counted %v", filepath.Base(file), err, got, want)
		}
		shown, err := exec.Command("tshark", "-r", file, "-T", "fields", "-e", "frame.comment", "-e", "systemd_journal.message").Output()
		if got := actionsIn(string(shown)); err != nil || !maps.Equal(got, want) {
			t.Errorf("tshark %s: %v, %v; the rules have counted %v", filepath.Base(file), err, got, want)
		}
	}
	if ps, err := capture.Load(live); err != nil || len(ps) < 500 {
		t.Errorf("%d packets, %v", len(ps), err)
	}
	for _, command := range []string{"check", "replay"} {
		out, _ := exec.Command(harness.Binary(t), command, live).CombinedOutput()
		if strings.Contains(string(out), "corrupt") || !strings.Contains(string(out), "packets") {
			t.Errorf("%s: %s", command, out)
		}
	}
	log := d.Output()
	for rule := range strings.Lines(rules) {
		rule = strings.TrimSpace(rule)
		if acts := !strings.Contains(rule, "cm req") && !strings.Contains(rule, "10.0.0.1"); strings.Contains(log, rule) != acts {
			t.Errorf("the log has the rule %q: %v, want %v:\n%s", rule, !acts, acts, log)
		}
	}
}

func TestRunCapturesFailedVerb(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns, dir := harness.Namespace(t, "runnote"), t.TempDir()
	program, file := filepath.Join(dir, "fault"), filepath.Join(dir, "a.pcapng")
	if err := os.WriteFile(program, []byte("fail create_cq ENOMEM client ibv_rc_pingpong\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	out, err := harness.InNamespace(ns)(ctx, harness.Binary(t), "run", "--fault", program, "--capture", file, "--", "ibv_rc_pingpong", "-g", "1").CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var notes []capture.Note
	r, err := capture.Open(file)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer r.Close()
	r.OnNote(func(n capture.Note) { notes = append(notes, n) })
	for _, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(notes) != 1 || notes[0].Rule != 1 || notes[0].Program != "ibv_rc_pingpong" || notes[0].PID == 0 ||
		!strings.HasPrefix(notes[0].Text, "fault rule 1: fail create_cq ENOMEM client ibv_rc_pingpong, create_cq (softroce0, pid ") {
		t.Errorf("notes %+v", notes)
	}
}
