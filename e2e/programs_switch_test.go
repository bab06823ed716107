package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"softroce/e2e/harness"
	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/packet"
	"softroce/wire"
)

// Three programs write to a fourth NIC at the same time, on a fabric that is a switch: it marks,
// pauses or drops.
func TestProgramsShareASwitch(t *testing.T) {
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	for _, c := range []struct {
		name, config           string
		marks, pauses, dropped bool
	}{
		{"ECN", "ecn: {kmin: 5kB, kmax: 200kB, pmax: 0.01}", true, false, false},
		{"PFC", "pfc: {priorities: [3], xoff: 40kB, xon: 20kB, headroom: 60kB}", false, true, false},
		{"drops", "queue: 60kB", false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, file := harness.Namespace(t, "switch"), filepath.Join(t.TempDir(), "star.yaml")
			if err := os.WriteFile(file, []byte("rate: 500M\nswitch: {"+c.config+"}\nstar: {nics: 4}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			socket := harness.DaemonIn(t, ns, append(harness.Judged(t, 3, 300), "--fabric", file)...)
			all := filepath.Join(t.TempDir(), "pauses.pcapng")
			stop := harness.StartCapture(t, socket, all)
			end := func(i int) harness.Endpoint {
				return harness.OnDaemon(ns, socket, harness.Endpoint{Device: fmt.Sprint("n", i), Host: "127.0.0.1"})
			}
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			var jobs []*harness.Job
			var ports []int
			const write = "ib_write_bw -d n%d -x 1 -F -s 65536 -n 200 --tclass=106 -p %d"
			for range 3 {
				port, server := harness.FreePort(), end(3)
				job := server.Start(ctx, t, fmt.Sprintf(write, 3, port))
				if err := server.WaitListening(ctx, job, port); err != nil {
					t.Fatalf("%v: %s", err, job.Output())
				}
				jobs, ports = append(jobs, job), append(ports, port)
			}
			for i, port := range ports {
				jobs = append(jobs, end(i).Start(ctx, t, fmt.Sprintf(write, i, port)+" 127.0.0.1"))
			}
			for _, job := range jobs {
				if out, err := job.Wait(); err != nil || !perftestResult.MatchString(out) {
					t.Errorf("%v: %s", err, out)
				}
			}
			stop()
			operator, err := control.Dial(t.Context(), socket)
			if err != nil {
				t.Fatal(err)
			}
			defer operator.Close()
			s := snapshotOf(t, operator)
			var sum wire.SwitchPort
			for _, p := range s.Ports {
				sum.Marked, sum.Dropped, sum.PausesSent = sum.Marked+p.Marked, sum.Dropped+p.Dropped, sum.PausesSent+p.PausesSent
			}
			cnps := uint64(0)
			for _, d := range s.Devices {
				cnps += d.Counters.Values["rp_cnp_handled"]
			}
			if len(s.Ports) != 8 || sum.Marked > 0 != c.marks || cnps > 0 != c.marks || sum.PausesSent > 0 != c.pauses || sum.Dropped > 0 != c.dropped {
				t.Errorf("%d frames marked, %d CNPs, %d pauses, %d dropped, %d ports", sum.Marked, cnps, sum.PausesSent, sum.Dropped, len(s.Ports))
			}
			if begun, ended := pausesIn(t, all); begun != sum.PausesSent || ended != begun {
				t.Errorf("the capture has %d pauses that begin and %d that end, of %d", begun, ended, sum.PausesSent)
			}
		})
	}
}

// pausesIn returns how many pause frames of priority 3 in a capture begin a pause, and end one.
func pausesIn(t *testing.T, file string) (begun, ended uint64) {
	t.Helper()
	for _, rec := range harness.Frames(t, file) {
		switch p, ok := packet.ParsePause(rec.Data); {
		case ok && p == packet.Pause{SrcMAC: p.SrcMAC, Classes: 1 << 3, Quanta: [8]uint16{3: 0xffff}}:
			begun++
		case ok && p == packet.Pause{SrcMAC: p.SrcMAC, Classes: 1 << 3}:
			ended++
		case ok:
			t.Errorf("frame %d of %s: %+v", rec.No, rec.NIC, p)
		}
	}
	return begun, ended
}

// snapshotOf returns the state of a daemon.
func snapshotOf(t *testing.T, operator *control.Client) (s daemon.Snapshot) {
	t.Helper()
	text, err := operator.Snapshot(t.Context())
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}
