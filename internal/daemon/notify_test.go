package daemon

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

func TestNotifyReadyNotifiesServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NotifyReady(); err != nil {
		t.Errorf("without NOTIFY_SOCKET: %v", err)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "n"), "@softroce-notify-test"} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		t.Setenv("NOTIFY_SOCKET", path)
		if err := NotifyReady(); err != nil {
			t.Fatal(err)
		}
		l.SetReadDeadline(time.Now().Add(testTimeout))
		b := make([]byte, 64)
		if n, err := l.Read(b); err != nil || string(b[:n]) != "READY=1" {
			t.Errorf("%s: %q, %v", path, b[:n], err)
		}
	}
}
