package attach

import (
	"io"
	"os"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/nic/nictest"
)

func newTestEventSocket(t *testing.T) (s *eventSocket, client int) {
	t.Helper()
	b := newBudget()
	a := &account{budget: b}
	s, client, err := a.newEventSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.closeEventSocket(s)
		unix.Close(client)
		if a.held != (amounts{}) {
			t.Errorf("%v is held", a.held)
		}
	})
	return s, client
}

// A client reads its events into memory whose pages never arrive. The kernel provides such memory
// to root, and to others through a file system of their own.
func TestSlowReaderOfEventsDelaysNoOtherClient(t *testing.T) {
	pages, err := nictest.NewPages(1)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("userfaultfd: %v", err)
		}
		t.Skipf("userfaultfd: %v", err)
	}
	s, client := newTestEventSocket(t)
	if err := unix.SetNonblock(client, false); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := unix.Read(client, pages.Bytes[:1])
		read <- err
	}()
	signaled := make(chan struct{})
	go func() {
		defer close(signaled)
		for range 300 {
			s.signal()
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-signaled:
	case <-time.After(20 * time.Second):
		t.Error("the daemon waits for the memory of the reader")
	}
	select {
	case err := <-read:
		t.Errorf("the memory arrived: %v", err)
	default:
	}
	if err := pages.Serve(0, 1); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	<-signaled
	pages.Close()
}

// Every event arrives as one byte, however late the client reads.
func TestUnreadEventsAreNotLost(t *testing.T) {
	const events = 5000
	s, client := newTestEventSocket(t)
	for range events {
		s.signal()
	}
	fd, err := unix.Dup(client)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	f.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(f, make([]byte, events)); err != nil {
		t.Fatal(err)
	}
	s.signal()
	if n, err := f.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("then %d bytes, %v", n, err)
	}
}

// The daemon closes a socket that is full.
func TestUnreadEventsEndWithTheirSocket(t *testing.T) {
	s, _ := newTestEventSocket(t)
	for range 5000 {
		s.signal()
	}
	if !s.draining.Load() {
		t.Error("no event waits")
	}
}

// A socket with room for its events has no file in the runtime's poller, which the client would
// wake with each byte that it reads.
func TestEventsThatFitWakeNoPoller(t *testing.T) {
	s, client := newTestEventSocket(t)
	for range 20 {
		s.signal()
		if _, err := unix.Read(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if s.file != nil {
		t.Error("the socket is in the runtime's poller")
	}
}

func TestEventForAClientThatHasLeftRaisesNoSignal(t *testing.T) {
	s, client := newTestEventSocket(t)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGPIPE, unix.SIGWINCH)
	defer signal.Stop(signals)
	unix.Shutdown(client, unix.SHUT_RDWR)
	s.signal()
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil { // arrives after an earlier SIGPIPE
		t.Fatal(err)
	}
	if got := <-signals; got != unix.SIGWINCH {
		t.Errorf("signal %v", got)
	}
}
