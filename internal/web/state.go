package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"softroce/internal/daemon"
	"softroce/internal/top"
)

const (
	// sampleInterval is the age up to which a snapshot is used for other requests.
	sampleInterval = 200 * time.Millisecond

	// rateInterval is the time over which rates are measured, at least.
	rateInterval = time.Second

	// noUser owns no queue pair: (uid_t)-1 is no user.
	noUser = ^uint32(0)
)

// A sample is a snapshot and its time.
type sample struct {
	*daemon.Snapshot
	at time.Time
}

// A sampler takes snapshots, of which all requests share one.
type sampler struct {
	take func() daemon.Snapshot

	mu          sync.Mutex
	latest      sample
	before, now sample // from which rates follow
}

// newest returns a snapshot that is not older than sampleInterval, and the two from which rates
// follow.
func (s *sampler) newest() (latest, before, now sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.latest.at) >= sampleInterval {
		snapshot := s.take()
		s.latest = sample{&snapshot, time.Now()}
	}
	if s.now.Snapshot == nil {
		s.before, s.now = s.latest, s.latest
	} else if s.latest.at.Sub(s.now.at) >= rateInterval {
		s.before, s.now = s.now, s.latest
	}
	return s.latest, s.before, s.now
}

// visible returns the part of a snapshot that a request may see.
func (s *Server) visible(r *http.Request, of sample) *daemon.Snapshot {
	if s.isOperator(r) {
		return of.Snapshot
	}
	v := of.VisibleTo(noUser)
	return &v
}

// A state is what the page shows, as text.
type state struct {
	Summary  string        `json:"summary"`
	Tables   []top.Table   `json:"tables"`
	Operator bool          `json:"operator"`
	NICs     []string      `json:"nics"`
	Captures []captureInfo `json:"captures,omitempty"` // for the operator
}

func (s *Server) state(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" && !s.isOperator(r) {
		s.refuse(w)
		return
	}
	_, before, now := s.sampler.newest()
	f := top.Frame{Before: s.visible(r, before), Now: s.visible(r, now), Elapsed: now.at.Sub(before.at)}
	out := state{Operator: s.isOperator(r), NICs: []string{}}
	out.Summary, out.Tables = f.Tables()
	for _, d := range f.Now.Devices {
		out.NICs = append(out.NICs, d.Name)
	}
	if out.Operator {
		out.Captures = s.captures.list()
	}
	writeJSON(w, out)
}

// psns are the PSNs of a queue pair at one moment.
type psns struct {
	At            float64 `json:"at"`      // seconds since 1970
	Next          uint32  `json:"next"`    // to send
	Unacked       uint32  `json:"unacked"` // the oldest that is not acknowledged, or Next
	Expected      uint32  `json:"expected"`
	Retransmitted uint64  `json:"retransmitted"`
	State         string  `json:"state"`
}

func (s *Server) psn(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("nic")
	qpn, err := strconv.ParseUint(r.FormValue("qpn"), 10, 24)
	if err != nil {
		http.Error(w, fmt.Sprintf("qpn %q: want the number of a queue pair", r.FormValue("qpn")), http.StatusBadRequest)
		return
	}
	latest, _, _ := s.sampler.newest()
	for _, d := range s.visible(r, latest).Devices {
		for _, q := range d.QPs {
			if d.Name != name || q.QPN != uint32(qpn) {
				continue
			}
			if q.Hidden {
				http.Error(w, "the PSNs of a queue pair are shown to the operator", http.StatusForbidden)
				return
			}
			p := psns{float64(latest.at.UnixMilli()) / 1000, q.SQPSN, q.SQPSN, q.RQPSN, q.Retransmitted, q.State}
			if q.Stall != nil {
				p.Unacked = q.Stall.PSN
			}
			writeJSON(w, p)
			return
		}
	}
	http.Error(w, fmt.Sprintf("NIC %q has no queue pair %d", name, qpn), http.StatusNotFound)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}
