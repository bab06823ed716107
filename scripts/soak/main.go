// Soak runs mixed traffic over a lossy fabric for a long time and judges all of it: every byte that
// arrives, the status of every completion, and what the daemon holds afterwards.
//
//	go run ./scripts/soak [-time 1h] [-qps 200] [-load 1] [-mapped]
//
// It starts bin/softroce as a daemon with two NICs that lose one packet in 200. Its clients are
// processes of its own:
//
//   - pairs use every operation of RC, with and without shared receive queues, XRC, UC and UD
//     between queue pairs of both NICs (reliable.go, unreliable.go), and replace all their objects
//     from time to time;
//   - a server and clients of the connection manager connect, exchange messages and disconnect
//     (connect.go).
//
// One of them is killed every few seconds and started again. An error is a failure unless the death
// of the peer that it names explains it. At the end all clients leave, and the daemon must be as it
// was at the beginning: objects, descriptors, mappings, goroutines. Its memory must not grow.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// faults is the fault program of the daemon.
const faults = "seed 1\ndrop receive chance 0.5%\n"

type options struct {
	time   time.Duration
	qps    int
	load   int
	mapped bool
	daemon string // the binary
	seed   uint64
}

func main() {
	var o options
	flag.DurationVar(&o.time, "time", time.Hour, "how long the traffic runs")
	flag.IntVar(&o.qps, "qps", 200, "queue pairs at a time")
	flag.IntVar(&o.load, "load", 1, "processors that other load keeps busy")
	flag.BoolVar(&o.mapped, "mapped", false, "use no memory that the daemon does not map: the kernel copies that")
	flag.StringVar(&o.daemon, "daemon", "bin/softroce", "the softroce binary")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the traffic and of what is killed; 0: random")
	worker := flag.String("worker", "", "for the processes of soak: what this one does")
	socket := flag.String("socket", "", "for the processes of soak: the daemon's socket")
	flag.Parse()
	if *worker != "" {
		os.Exit(runWorker(*worker, *socket, &o))
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// endWithParent makes the kernel kill a process when the thread that started it ends. That is the
// thread of run, so that nothing is left of a soak that is killed.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// A soak is a run.
type soak struct {
	*options
	random *rand.Rand
	socket string
	daemon *daemon
	workers
	rss []int // of the daemon, in KiB, once a second
}

func run(o *options) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "faults")
	if err := os.WriteFile(program, []byte(faults), 0o644); err != nil {
		return err
	}
	s := &soak{options: o, random: rand.New(rand.NewPCG(o.seed, 1)), socket: filepath.Join(dir, "s")}
	fmt.Printf("soak: %v with seed %d\n", o.time, o.seed)

	if s.daemon, err = startDaemon(o.daemon, s.socket, program); err != nil {
		return err
	}
	defer s.daemon.kill()
	goroutines, err := s.daemon.fewestGoroutines()
	if err != nil {
		return err
	}
	before, err := s.daemon.holds()
	if err != nil {
		return err
	}
	s.start()
	if err = s.traffic(); err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\ncounters of the daemon at that time: %s\n", err, s.daemon.counters())
	}
	err = errors.Join(err, s.end())
	lost, lossErr := s.daemon.lost()
	after, leak := s.daemon.settle(before)
	err = errors.Join(err, lossErr, leak, s.memory())
	n, countErr := s.daemon.settleGoroutines(goroutines)
	if err = errors.Join(err, countErr); countErr == nil && n > goroutines {
		err = errors.Join(err, fmt.Errorf("the daemon has %d goroutines at the end, and had %d at the beginning:\n%s", n, goroutines, s.daemon.stacks()))
	}
	if lost == 0 {
		err = errors.Join(err, errors.New("no packet was lost"))
	}
	err = errors.Join(err, s.complete())
	first, last := s.growth()
	fmt.Printf("soak: %v: %s, %d packets lost; at the end %v, %d goroutines; resident memory %d MiB, at the beginning %d MiB\n",
		o.time, s.tally.String(), lost, after, n, last>>10, first>>10)
	return err
}

// traffic runs until the time is over or something fails.
func (s *soak) traffic() error {
	end := time.Now().Add(s.time)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	kill := time.NewTimer(s.untilKill())
	defer kill.Stop()
	for time.Now().Before(end) {
		select {
		case <-second.C:
			rss, err := s.daemon.resident()
			if err != nil {
				return fmt.Errorf("the daemon is gone: %w\n%s", err, s.daemon.log())
			}
			s.rss = append(s.rss, rss)
		case <-kill.C:
			s.killOne(s.random)
			kill.Reset(s.untilKill())
		case err := <-s.failures:
			return err
		}
	}
	return nil
}

// untilKill is how long to wait before the next client is killed.
func (s *soak) untilKill() time.Duration {
	return min(s.time/8, time.Duration(500+s.random.IntN(3000))*time.Millisecond)
}

// growth returns the median resident memory of the daemon after warming up and at the end, in KiB.
func (s *soak) growth() (first, last int) {
	n := len(s.rss)
	return median(s.rss[n/5 : max(n*2/5, min(n, n/5+1))]), median(s.rss[n*4/5:])
}

// memory judges the growth of the daemon's memory.
func (s *soak) memory() error {
	const slack = 24 << 10 // KiB: what the garbage collector may leave
	first, last := s.growth()
	if last > first+first/7+slack {
		return fmt.Errorf("the daemon's memory grew from %d to %d KiB", first, last)
	}
	return nil
}
