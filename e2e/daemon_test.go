package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"softroce/verbs"
)

func TestDaemonEndsCleanlyAndClientsHearOfIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	daemon := startDaemon(t, nil, "--socket", socket)
	nic := openNIC(t, daemon, socket)
	pd, err := nic.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	daemon.stop(t)

	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if e, err := nic.AsyncEvent(ctx); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("client heard %v, %v", e.EventType, err)
	}
	if _, err := pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("RegMR without a daemon: %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// count asks the daemon how many objects of a kind it holds.
func count(t *testing.T, bin, socket, what string) int {
	t.Helper()
	out, err := exec.Command(bin, "--socket", socket, "show", what, "--json").Output()
	if err != nil {
		t.Fatalf("show %s: %v", what, err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("show %s: %v in %s", what, err, out)
	}
	return len(list)
}
