package daemon

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"softroce/capture"
)

// frames writes n frames of 512 KiB to a recording, more than fits in a pipe.
func frames(r *recording, n int) {
	frame := make([]byte, 1<<19)
	for i := range n {
		r.write(int64(i), 0, frame, 0)
	}
}

// record starts a recording of one NIC.
func record(w *os.File, blocking bool) *recording {
	r := newRecording(output{file: w, blocking: blocking}, []string{"a"})
	go r.drain()
	return r
}

func TestStalledReaderLosesFramesWithoutBlockingEngines(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	r := record(wr, false)
	const n = 3 * maxPending >> 19
	frames(r, n) // must return although nothing reads the pipe
	s, _ := r.State()
	if s.Dropped == 0 || s.Packets+s.Dropped != n {
		t.Errorf("%d frames recorded, %d dropped, of %d", s.Packets, s.Dropped, n)
	}
	if err := r.Stop(); err == nil {
		t.Error("Stop of a stalled recording returned no error")
	}
}

func TestCaptureSaysHowManyFramesItLost(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := record(wr, false)
	const n = 3 * maxPending >> 19
	frames(r, n)
	go r.Stop()
	f, err := pcapgo.NewNgReader(rd, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	read := uint64(0)
	for ; err == nil; read++ {
		_, _, err = f.ZeroCopyReadPacketData()
	}
	read--
	iface, ifaceErr := f.Interface(0)
	if !errors.Is(err, io.EOF) || ifaceErr != nil {
		t.Fatal(err, ifaceErr)
	}
	if s := iface.Statistics; s.PacketsReceived != n || s.PacketsDropped == 0 || s.PacketsDropped != n-read {
		t.Errorf("%d frames of %d read, the file says %d seen, %d lost", read, n, s.PacketsReceived, s.PacketsDropped)
	}
}

func TestRecordingReportsWriteError(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := record(wr, true)
	rd.Close()
	frames(r, 1)
	<-r.done
	frames(r, 2*maxPending>>19) // engines no longer wait for it
	if _, err := r.State(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("State: %v, want EPIPE", err)
	}
	if err := r.Stop(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Stop: %v, want EPIPE", err)
	}
}

func TestLosslessRecordingKeepsEveryFrame(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := record(wr, true)
	read := make(chan []byte)
	go func() {
		time.Sleep(50 * time.Millisecond) // a slow reader
		b, _ := io.ReadAll(rd)
		read <- b
	}()
	const n = 2 * maxPending >> 19
	frames(r, n)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	c, err := capture.NewReader(bytes.NewReader(<-read), "pipe")
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for rec, err := range c.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if len(rec.Data) != 1<<19 {
			t.Fatalf("frame of %d bytes", len(rec.Data))
		}
		got++
	}
	if s, err := r.State(); got != n || s.Dropped != 0 || err != nil {
		t.Errorf("%d of %d frames, %d dropped: %v", got, n, s.Dropped, err)
	}
}

func TestRecordingFailsWhenReaderCloses(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := record(wr, true)
	rd.Close()
	frames(r, 3*maxPending>>19) // must not block forever
	if err := r.Stop(); err == nil {
		t.Error("no error")
	}
}
