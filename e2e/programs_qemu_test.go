package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// A qmp is a connection to the monitor of a QEMU, which speaks JSON.
type qmp struct {
	t    *testing.T
	conn net.Conn
	in   *json.Decoder
}

// openMonitor connects to the socket of a monitor as soon as it is there.
func openMonitor(ctx context.Context, t *testing.T, socket string, j *harness.Job) *qmp {
	t.Helper()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			q := &qmp{t, conn, json.NewDecoder(conn)}
			var greeting any
			if err := q.in.Decode(&greeting); err != nil {
				t.Fatal(err)
			}
			q.execute("qmp_capabilities", nil, nil)
			return q
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-j.Done:
			out, err := j.Wait()
			t.Fatalf("QEMU: %v\n%s", err, out)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// execute carries out a command of the monitor, and stores what it returns.
func (q *qmp) execute(command string, arguments, result any) {
	q.t.Helper()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(q.conn).Encode(request); err != nil {
		q.t.Fatal(err)
	}
	for {
		var reply struct{ Return, Error, Event json.RawMessage }
		if err := q.in.Decode(&reply); err != nil {
			q.t.Fatal(err)
		}
		switch {
		case reply.Event != nil:
		case reply.Error != nil:
			q.t.Fatalf("%s: %s", command, reply.Error)
		default:
			if result != nil {
				if err := json.Unmarshal(reply.Return, result); err != nil {
					q.t.Fatalf("%s: %v", command, err)
				}
			}
			return
		}
	}
}

// TestQEMUMigratesOverRDMA moves a virtual machine, which waits in its firmware, from one QEMU to
// another.
func TestQEMUMigratesOverRDMA(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	const program = "qemu-system-x86_64"
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	harness.LocalPrograms.Acquire(t)
	from, to := harness.FabricPair(t, harness.Judged(t, 1, 100)...)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	dir := harness.ShortDir(t)
	start := func(e harness.Endpoint, name, options string) *qmp {
		socket := filepath.Join(dir, name)
		j := e.Start(ctx, t, program+" -machine q35,accel=tcg -m 64 -nodefaults -display none -qmp unix:"+socket+",server=on,wait=off"+options)
		return openMonitor(ctx, t, socket, j)
	}
	uri := fmt.Sprintf("rdma:%s:%d", to.Addr[false], harness.FreePort())
	destination := start(to, "to", " -incoming "+uri)
	source := start(from, "from", "")
	source.execute("migrate", map[string]any{"uri": uri}, nil)
	var migration struct {
		Status string
		Desc   string `json:"error-desc"`
		RAM    struct{ Transferred int }
	}
	for migration.Status != "completed" {
		if source.execute("query-migrate", nil, &migration); migration.Status == "failed" || ctx.Err() != nil {
			t.Fatalf("the migration: %s %s", migration.Status, migration.Desc)
		}
		time.Sleep(10 * time.Millisecond)
	}
	var status struct{ Status string }
	for status.Status != "running" {
		if destination.execute("query-status", nil, &status); ctx.Err() != nil {
			t.Fatalf("the virtual machine is in the state %s", status.Status)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%d bytes of memory were moved", migration.RAM.Transferred)
	for _, q := range []*qmp{source, destination} {
		q.execute("quit", nil, nil)
	}
}
