package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// A report is a line that a worker writes to its parent.
type report struct {
	Tally tally  // done since the last report
	Fail  string // an error that nothing explains
	Lost  string // an error that the death of Peer explains; of any server, if Peer is 0
	Peer  int
}

// A tally counts what was done, by operation or event.
type tally map[string]uint64

const bytesChecked = "bytes checked"

func (t tally) add(o tally) {
	for k, n := range o {
		t[k] += n
	}
}

func (t tally) String() string {
	var parts []string
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range t {
			if !yield(k) {
				return
			}
		}
	}) {
		parts = append(parts, fmt.Sprintf("%d %s", t[k], k))
	}
	return strings.Join(parts, ", ")
}

// expected is what every run must have done.
var expected = []string{"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "ATOMIC_WRITE", "FLUSH", "BIND_MW", "LOCAL_INV",
	"UC SEND", "UC RDMA_WRITE", "UC RDMA_WRITE_WITH_IMM", "UD SEND", "SRQ SEND", "XRC SEND", "XRC RDMA_WRITE", "XRC RDMA_READ",
	"pairs connected", "connections", "messages echoed", "clients killed", bytesChecked}

// complete returns an error if something was not done at all.
func (w *workers) complete() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var missing []string
	for _, k := range expected {
		if w.tally[k] == 0 {
			missing = append(missing, k)
		}
	}
	if missing != nil {
		return fmt.Errorf("not done at all: %s", strings.Join(missing, ", "))
	}
	return nil
}

// serverRestart bounds how long clients may fail to connect after a server was killed: a REQ may
// wait for all its retransmissions.
const serverRestart = 90 * time.Second

// workers are the processes of a soak.
type workers struct {
	all      []*worker
	failures chan error

	mu           sync.Mutex
	tally        tally
	killed       map[int]bool
	serverKilled time.Time
}

// A worker is a process that is started again when it was killed.
type worker struct {
	kind  string
	qps   int
	soak  *soak
	seed  uint64
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan error
}

// The kinds of workers.
const (
	kindPairs  = "pairs"
	kindServer = "server"
	kindClient = "client"
	kindLoad   = "load"
)

// start starts the workers. A quarter of the queue pairs are those of the connection manager.
func (s *soak) start() {
	s.tally, s.killed, s.failures = tally{}, map[int]bool{}, make(chan error, 1)
	const processes = 4
	s.launch(kindServer, 0)
	for range processes {
		s.launch(kindPairs, max(s.qps*3/4/processes, 2*len(pairKinds)))
	}
	for range 2 {
		s.launch(kindClient, max(s.qps/4/2/2, 1))
	}
	for range s.load {
		s.launch(kindLoad, 0)
	}
}

func (s *soak) launch(kind string, qps int) {
	w := &worker{kind: kind, qps: qps, soak: s, seed: s.random.Uint64()}
	s.all = append(s.all, w)
	w.run()
}

// run starts the process.
func (w *worker) run() {
	self, err := os.Executable()
	if err != nil {
		w.soak.fail(err)
		return
	}
	w.seed++
	w.cmd = exec.Command(self, "-worker", w.kind, "-socket", w.soak.socket, "-qps", fmt.Sprint(w.qps), "-seed", fmt.Sprint(w.seed),
		fmt.Sprintf("-mapped=%t", w.soak.mapped))
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = endWithParent()
	w.ended = make(chan error, 1)
	out, outErr := w.cmd.StdoutPipe()
	in, inErr := w.cmd.StdinPipe()
	if err := errors.Join(outErr, inErr); err != nil {
		w.soak.fail(err)
		return
	}
	w.stdin = in
	if err := w.cmd.Start(); err != nil {
		w.soak.fail(err)
		return
	}
	go func(cmd *exec.Cmd, ended chan error) {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) == nil { // the last line of a killed process may be a part
				w.soak.judge(w.kind, cmd.Process.Pid, &r)
			}
		}
		err := cmd.Wait()
		if err != nil && !w.soak.wasKilled(cmd.Process.Pid) {
			w.soak.fail(fmt.Errorf("%s (process %d): %w", w.kind, cmd.Process.Pid, err))
		}
		ended <- err
	}(w.cmd, w.ended)
}

// judge counts a report, and decides whether an error has an explanation.
func (s *soak) judge(kind string, pid int, r *report) {
	if r.Fail != "" {
		s.fail(fmt.Errorf("%s (process %d): %s", kind, pid, r.Fail))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.add(r.Tally)
	if r.Lost == "" {
		return
	}
	if s.killed[r.Peer] || r.Peer == 0 && time.Since(s.serverKilled) < serverRestart && !s.serverKilled.IsZero() {
		s.tally["failures explained by a killed peer"]++
		return
	}
	s.failLocked(fmt.Errorf("%s (process %d): %s, but its peer, process %d, was not killed", kind, pid, r.Lost, r.Peer))
}

func (s *soak) wasKilled(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed[pid]
}

func (s *soak) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

// failLocked keeps the first failure; others may follow from it.
func (s *soak) failLocked(err error) {
	select {
	case s.failures <- err:
	default:
	}
}

// killOne kills a client and starts it again. Servers are killed less often, as clients wait for
// them.
func (s *soak) killOne(r *rand.Rand) {
	w := s.all[r.IntN(len(s.all)-s.load)]
	if w.kind == kindServer && r.IntN(3) != 0 {
		return
	}
	s.mu.Lock()
	s.killed[w.cmd.Process.Pid] = true
	s.tally["clients killed"]++
	if w.kind == kindServer {
		s.serverKilled = time.Now()
	}
	s.mu.Unlock()
	w.cmd.Process.Kill()
	<-w.ended
	w.run()
}

// end makes all workers leave, servers last.
func (s *soak) end() error {
	var err error
	for _, kinds := range [][]string{{kindPairs, kindClient, kindLoad}, {kindServer}} {
		limit := time.After(2 * time.Minute)
		for _, w := range s.all {
			if slices.Contains(kinds, w.kind) {
				w.stdin.Close()
			}
		}
		for _, w := range s.all {
			if !slices.Contains(kinds, w.kind) {
				continue
			}
			select {
			case <-w.ended:
			case <-limit:
				err = errors.Join(err, fmt.Errorf("%s (process %d) does not end", w.kind, w.cmd.Process.Pid))
				w.cmd.Process.Kill()
				<-w.ended
			}
		}
	}
	select {
	case late := <-s.failures:
		err = errors.Join(err, late)
	default:
	}
	return err
}
