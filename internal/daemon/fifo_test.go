package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
	"softroce/verbs"
)

func newFIFO(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openReader opens a FIFO for reading, without waiting for a writer.
func openReader(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// exceedBuffer sends, one message after another, until a capture has lost packets or ended. What
// the writer holds does not count as pending, and may be as much.
func exceedBuffer(t *testing.T, d *Daemon, a, b endpoint) {
	t.Helper()
	for range 2*maxPending>>16 + 64 {
		write(t, a, b, 1<<16)
		if s, err := d.capture.State(); err != nil || s.Dropped > 0 {
			return
		}
	}
}

func TestReaderThatLeavesEndsTheCaptureAlone(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		path := newFIFO(t)
		reader := openReader(t, path)
		d := start(t, Config{Capture: path, CaptureBlocking: blocking})
		a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
		connect(t, a, b)
		reader.Close()
		exceedBuffer(t, d, a, b)
		if err := d.Close(); !errors.Is(err, syscall.EPIPE) || !strings.Contains(err.Error(), "the capture cannot be written") {
			t.Errorf("blocking %v: Close returned %v", blocking, err)
		}
	}
}

func TestReaderThatStallsLosesPackets(t *testing.T) {
	path := newFIFO(t)
	openReader(t, path)
	d := start(t, Config{Capture: path})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	exceedBuffer(t, d, a, b)
	if s, err := d.capture.State(); err != nil || s.Dropped == 0 {
		t.Errorf("%+v, %v; want lost packets", s, err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "does not accept the remaining data") {
		t.Errorf("Close returned %v", err)
	}
}

// The end of a capture that is not read is the end of its writer too, also of a selection.
func TestReaderThatStallsDoesNotKeepTheWriter(t *testing.T) {
	for _, options := range []string{"", ",count=1000000"} {
		path := newFIFO(t)
		openReader(t, path)
		d := start(t, Config{Capture: path + options})
		for range 2 { // more than fits in the FIFO
			exchange(t, d, 16)
		}
		if err := d.Close(); err == nil || !strings.Contains(err.Error(), "does not accept the remaining data") {
			t.Errorf("%q: Close returned %v", options, err)
		}
		select {
		case <-d.capture.done:
		case <-testContext(t).Done():
			t.Errorf("%q: the writer still waits", options)
		}
	}
}

// TestBlockingCaptureDoesNotDelayClose stops a daemon whose engine waits for a capture's reader.
func TestBlockingCaptureDoesNotDelayClose(t *testing.T) {
	path := newFIFO(t)
	openReader(t, path)
	d := start(t, Config{Capture: path, CaptureBlocking: true})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
		SGList: []verbs.SGE{a.mr.SGE(0, 1<<16)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	var wc [16]verbs.WC
	const frame = 4096 + 128 // with all headers, at most
	full := func() bool {    // the engine waits with the next packet of data
		d.capture.mu.Lock()
		defer d.capture.mu.Unlock()
		return len(d.capture.pending.data)+frame > maxPending
	}
	for ctx := testContext(t); !full(); {
		a.qp.PostSend(wr) // fails while the queue is full
		if _, err := a.cq.Poll(wc[:]); err != nil || ctx.Err() != nil {
			s, _ := d.capture.State()
			t.Fatalf("%v, %v; recorded %+v", err, ctx.Err(), s)
		}
	}
	if s, _ := d.capture.State(); s.Dropped != 0 {
		t.Errorf("the engine lost packets of the capture: %+v", s)
	}
	// After CloseTimeout the error would be another one.
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "does not accept the remaining data") {
		t.Errorf("Close returned %v", err)
	}
}

func TestCaptureWaitsForTheReaderOfItsFIFO(t *testing.T) {
	path := newFIFO(t)
	d := start(t, Config{Capture: path})
	a, b := newEndpoint(t, open(t, d, "softroce0")), newEndpoint(t, open(t, d, "softroce1"))
	connect(t, a, b)
	write(t, a, b, 100) // before there is a reader
	read := make(chan capture.Packets)
	go func() {
		packets, err := capture.Load(path)
		if err != nil {
			t.Error(err)
		}
		read <- packets
	}()
	for { // until the reader is there
		d.capture.mu.Lock()
		opened := d.capture.file != nil
		d.capture.mu.Unlock()
		if opened {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if got := <-read; len(got) != 2 {
		t.Errorf("read %v, want a WRITE and its ACK", got)
	}
}

func TestCloseReportsFIFOThatNothingRead(t *testing.T) {
	d := start(t, Config{Capture: newFIFO(t)})
	if err := d.Close(); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("Close returned %v, want ENXIO", err)
	}
}

// TestCloseNamesWhatHangs stops a daemon whose engine is stuck.
func TestCloseNamesWhatHangs(t *testing.T) {
	t.Parallel() // it only waits
	d := start(t, Config{})
	open(t, d, "")
	stuck := make(chan struct{})
	defer close(stuck)
	go d.engines[0].Do(func() { <-stuck })
	err := d.Close()
	if err == nil || !strings.Contains(err.Error(), "shutdown: the engines did not end within 5s") {
		t.Errorf("Close returned %v", err)
	}
}
