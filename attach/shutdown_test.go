package attach_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/wire"
)

// closeLimit is far above what a shutdown takes on a busy machine, and below what it takes if the
// server waits a second for each of 100 clients.
const closeLimit = 50 * time.Second

// fillSocket sends requests and reads no reply until the server has no room for replies.
func fillSocket(t *testing.T, sock *net.UnixConn) {
	t.Helper()
	send := func(op uint16, body ...any) error {
		sock.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		return control.Write(sock, abi.Message(nil, abi.Header{Version: abi.Version, Op: op}, body...))
	}
	err := send(abi.OpHello, abi.HelloRequest{})
	for err == nil {
		err = send(abi.OpListDevices)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestCloseDoesNotWaitForClientsThatDoNotRead(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	var silent []*net.UnixConn
	for range 100 {
		sock := f.Connect()
		defer sock.Close()
		fillSocket(t, sock)
		silent = append(silent, sock)
	}
	client := f.Open(0)
	ctx, cancel := context.WithTimeout(t.Context(), closeLimit)
	defer cancel()
	if err := f.Server.Close(ctx); err != nil {
		t.Error(err)
	}
	if e, err := client.AsyncEvent(ctx); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("a client that reads got event %v, %v", e.EventType, err)
	}
	for i, sock := range silent {
		buf := make([]byte, abi.MaxMessage)
		sock.SetReadDeadline(time.Now().Add(closeLimit))
		var err error
		for err == nil {
			_, err = sock.Read(buf)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("client %d is still connected", i)
		}
	}
}

// A stuckCapturer starts captures on a file that never answers.
type stuckCapturer struct{ stuck, release chan struct{} }

func (c *stuckCapturer) StartCapture(w *os.File, device string) (attach.Capture, error) {
	close(c.stuck)
	<-c.release
	w.Close()
	return nil, syscall.EIO
}

// TestCloseNamesClientThatHoldsItUp has a client whose request does not return. The others are
// notified and released nevertheless.
func TestCloseNamesClientThatHoldsItUp(t *testing.T) {
	e, err := nic.NewEngine(nic.EngineConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	iface := wire.StaticInterface("", [6]byte{2}, 1500)
	if _, err := e.AddDevice(nic.DeviceConfig{Name: "nic0", Link: wire.NewFabric().NewLink(e), Iface: iface}); err != nil {
		t.Fatal(err)
	}
	hook := &stuckCapturer{make(chan struct{}), make(chan struct{})}
	s, err := attach.NewServer(attach.Config{Engines: []*nic.Engine{e}, Capture: hook})
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Listen(attach.ListenConfig{Path: t.TempDir() + "/sock"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := verbs.Open(t.Context(), "", verbs.WithSocket(path))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stuck, err := control.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	go stuck.StartCapture(context.Background(), os.Stderr, "")
	<-hook.stuck

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil || !strings.Contains(err.Error(), "clients whose objects are not released: PID ") {
		t.Errorf("close returned %v", err)
	}
	later, cancel := context.WithTimeout(t.Context(), closeLimit)
	defer cancel()
	if e, err := client.AsyncEvent(later); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("another client got event %v, %v", e.EventType, err)
	}
	close(hook.release)
	if err := s.Close(later); err != nil {
		t.Errorf("close after the request has returned: %v", err)
	}
}
