package web

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"softroce/attach"
	"softroce/capture"
	"softroce/internal/daemon"
	"softroce/internal/report"
	"softroce/internal/tempdir"
)

const (
	maxCaptures = 4      // that are kept
	maxPackets  = 200000 // of a capture, after which it ends
)

// captures are those that the page has begun. Their files are in a directory of their own.
type captures struct {
	daemon    *daemon.Daemon
	limit     uint64 // packets of a capture
	mu        sync.Mutex
	dir       string // "" before the first capture
	all       []*recorded
	reporting sync.Mutex // held while a report is made, one at a time
}

// A recorded is a capture.
type recorded struct {
	captureInfo
	limit   uint64 // packets
	file    string
	capture attach.Capture
}

// A captureInfo is what the page shows of a capture.
type captureInfo struct {
	ID      string `json:"id"`
	NIC     string `json:"nic"` // "" is all
	Filter  string `json:"filter"`
	Packets uint64 `json:"packets"`
	Lost    uint64 `json:"lost"`
	Running bool   `json:"running"`
	Error   string `json:"error,omitempty"`
}

func (c *captures) list() (l []captureInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.all {
		r.update()
		l = append(l, r.captureInfo)
	}
	return l
}

func (r *recorded) update() {
	s, err := r.capture.State()
	if r.Running && err == nil && s.Packets >= r.limit {
		err = r.capture.Stop() // it has ended by itself: this waits for its file
	}
	r.Packets, r.Lost = s.Packets, s.Dropped
	if err != nil {
		r.Error = err.Error()
	}
	r.Running = r.Running && err == nil && s.Packets < r.limit
}

// find returns a capture, or replies that there is none.
func (c *captures) find(w http.ResponseWriter, r *http.Request) *recorded {
	for _, x := range c.all {
		if x.ID == r.PathValue("id") {
			return x
		}
	}
	http.Error(w, "no such capture", http.StatusNotFound)
	return nil
}

// start begins a capture. The body is JSON: the NIC, "" for all, and a filter in the language of
// softroce capture, "" for all packets.
func (c *captures) start(w http.ResponseWriter, r *http.Request) {
	var want struct{ NIC, Filter string }
	o := daemon.RecordOptions{Count: c.limit}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&want)
	if err == nil && want.Filter != "" {
		o.Filter, err = capture.ParseFilter(want.Filter)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == maxCaptures {
		http.Error(w, fmt.Sprintf("%d captures are kept at most: remove one first", maxCaptures), http.StatusConflict)
		return
	}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp(tempdir.ForPrivate(), "softroce-web-"); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	x := &recorded{limit: c.limit, captureInfo: captureInfo{ID: rand.Text(), NIC: want.NIC, Filter: want.Filter, Running: true}}
	x.file = filepath.Join(c.dir, x.ID+".pcapng")
	o.Device, o.Output = want.NIC, x.file
	if x.capture, err = c.daemon.Record(o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.all = append(c.all, x)
	writeJSON(w, x.captureInfo)
}

func (c *captures) stop(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.find(w, r); x != nil {
		x.end()
		writeJSON(w, x.captureInfo)
	}
}

// end writes the capture out.
func (r *recorded) end() {
	err := r.capture.Stop()
	r.update()
	r.Running = false
	if err != nil {
		r.Error = err.Error()
	}
}

func (c *captures) remove(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.find(w, r)
	if x == nil {
		return
	}
	x.end()
	os.Remove(x.file)
	for i := range c.all {
		if c.all[i] == x {
			c.all = append(c.all[:i], c.all[i+1:]...)
			break
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// ended returns the file of a capture that has ended, or replies why there is none.
func (c *captures) ended(w http.ResponseWriter, r *http.Request) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.find(w, r)
	if x == nil {
		return ""
	}
	if x.Running {
		http.Error(w, "the capture is running: stop it first", http.StatusConflict)
		return ""
	}
	// Sending a file and making a report take longer than other replies.
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * time.Minute))
	return x.file
}

func (c *captures) download(w http.ResponseWriter, r *http.Request) {
	if file := c.ended(w, r); file != "" {
		w.Header().Set("Content-Disposition", `attachment; filename="softroce.pcapng"`)
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeFile(w, r, file)
	}
}

// report replies with the page of softroce report. It has an origin of its own: whatever a capture
// holds, its page cannot do what the live page can.
func (c *captures) report(w http.ResponseWriter, r *http.Request) {
	file := c.ended(w, r)
	if file == "" {
		return
	}
	c.reporting.Lock()
	defer c.reporting.Unlock()
	page, err := report.Read(func() (*capture.Reader, error) { return capture.Open(file) })
	if page == nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	page.Name = "softroce.pcapng"
	w.Header().Set("Content-Security-Policy", "sandbox allow-scripts")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	page.WriteHTML(w)
}

// close ends and removes all captures.
func (c *captures) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, x := range c.all {
		errs = append(errs, x.capture.Stop())
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
