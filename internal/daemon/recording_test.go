package daemon

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"softroce/capture"
)

// frames gives a recording n frames of 512 KiB: more than one write of a pipe takes.
func frames(r *recording, n int) {
	frame := make([]byte, 1<<19)
	for i := range n {
		r.write(int64(i), 0, frame)
	}
}

func TestStalledReaderLosesFramesWithoutBlockingEngines(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	r, err := newRecording(wr, []string{"a"}, false)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3 * maxPending >> 19
	frames(r, n) // returns, although nobody reads
	s, _ := r.State()
	if s.Dropped == 0 || s.Packets+s.Dropped != n {
		t.Errorf("%d taken, %d lost, of %d", s.Packets, s.Dropped, n)
	}
	if err := r.Stop(); err == nil {
		t.Error("the end of a capture that could not be written is no error")
	}
}

func TestRecordingReportsWriteError(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRecording(wr, []string{"a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	rd.Close()
	frames(r, 1)
	<-r.done
	frames(r, 2*maxPending>>19) // engines do not wait for it any more
	if _, err := r.State(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("its state is %v, not EPIPE", err)
	}
	if err := r.Stop(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("it ended with %v, not EPIPE", err)
	}
}

func TestLosslessRecordingKeepsEveryFrame(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRecording(wr, []string{"a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan []byte)
	go func() {
		time.Sleep(50 * time.Millisecond) // a slow start
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
		t.Errorf("%d frames of %d, %d lost: %v", got, n, s.Dropped, err)
	}
}

func TestRecordingFailsWhenReaderCloses(t *testing.T) {
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRecording(wr, []string{"a"}, true)
	if err != nil {
		t.Fatal(err)
	}
	rd.Close()
	frames(r, 3*maxPending>>19) // must not wait for ever
	if err := r.Stop(); err == nil {
		t.Error("no error")
	}
}
