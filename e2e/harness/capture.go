package harness

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
)

// StartCapture runs softroce capture on the daemon at socket until the returned function is called.
// The capture must have lost no packet.
func StartCapture(t *testing.T, socket, file string) (stop func()) {
	t.Helper()
	var diag bytes.Buffer
	cmd := exec.Command(Binary(t), "--socket", socket, "capture", "-o", file)
	cmd.Stderr = &diag
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(StartLimit); ; time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(file); err == nil && st.Size() > 0 {
			break
		}
		if time.Now().After(limit) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("capture does not begin: %s", &diag)
		}
	}
	return func() {
		t.Helper()
		cmd.Process.Signal(unix.SIGTERM) // a shell may have had SIGINT ignored
		if err := cmd.Wait(); err != nil || !strings.Contains(diag.String(), " 0 lost") {
			t.Errorf("capture: %v, %s", err, &diag)
		}
	}
}

// Frames returns the frames of a capture.
func Frames(t *testing.T, file string) (frames []capture.Record) {
	t.Helper()
	r, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for f, err := range r.Records() {
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames
}
