package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDaemonPathTranslatesDescriptors(t *testing.T) {
	own := fmt.Sprintf("/proc/%d/fd/", os.Getpid())
	for path, want := range map[string]string{
		"/dev/fd/63": own + "63", "/proc/self/fd/5": own + "5", "/proc/thread-self/fd/5": own + "5", "/dev/stdout": own + "1", "/dev/stdin": own + "0",
		"/dev/stdoutx": "/dev/stdoutx", "/dev/fd/x": "/dev/fd/x", "/tmp/dev/fd/3": "/tmp/dev/fd/3", "/dev/null": "/dev/null",
		"-": own + "0",
	} {
		if got := daemonPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestStartIsCancelledWhileDaemonIsNotReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	o := Options{Stderr: io.Discard}
	if _, err := o.start(ctx, filepath.Join(t.TempDir(), "s"), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
