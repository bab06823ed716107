package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"softroce/capture"
	"softroce/e2e/harness"
	"softroce/internal/control"
	"softroce/internal/daemon"
	"softroce/packet"
)

// A markedEnd is one end of a link with its daemon.
type markedEnd struct {
	harness.Endpoint
	socket   string
	operator *control.Client
}

func newMarkedEnd(t *testing.T, l *harness.VethLink, end int, options ...string) *markedEnd {
	t.Helper()
	e := &markedEnd{}
	e.socket = harness.DaemonIn(t, l.Namespaces[end], append([]string{"--nic", "rdma0=packet:" + l.Interface + ",rate=500M"}, options...)...)
	address := fmt.Sprint("10.79.8.", end+1)
	e.Endpoint = harness.OnDaemon(l.Namespaces[end], e.socket,
		harness.Endpoint{Device: "rdma0", Host: address, Addr: map[bool]string{false: address}})
	var err error
	if e.operator, err = control.Dial(t.Context(), e.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.operator.Close() })
	return e
}

// nic returns the state of the NIC.
func (e *markedEnd) nic(t *testing.T) daemon.Device {
	t.Helper()
	s := snapshotOf(t, e.operator)
	if len(s.Devices) != 1 {
		t.Fatalf("%d NICs", len(s.Devices))
	}
	return s.Devices[0]
}

// counter returns the value of a counter of the NIC.
func (e *markedEnd) counter(t *testing.T, name string) uint64 {
	t.Helper()
	v, known := e.nic(t).Counters.Values[name]
	if !known {
		t.Fatalf("no counter %s", name)
	}
	return v
}

// awaitRate waits until the rate of the NIC's connection, 0 while it is not limited, is as wanted.
func (e *markedEnd) awaitRate(t *testing.T, job *harness.Job, what string, wanted func(rate int64) bool) {
	t.Helper()
	for job.Running() {
		for _, q := range e.nic(t).QPs {
			if q.Type == "RC" && q.State == "RTS" && wanted(q.Rate) {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	out, err := job.Wait()
	t.Fatalf("the rate %s before the program ended: %v\n%s", what, err, out)
}

// The packets of a program arrive with congestion marks for a while. Its NIC receives CNPs, reduces
// the rate of the connection, and returns to that of the port when no more packets are marked.
func TestRateFollowsMarks(t *testing.T) {
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	l := harness.NewVethLink(t)
	const messages, packetsEach = 50, 16 // of 64 KiB
	client, server := newMarkedEnd(t, l, 0), newMarkedEnd(t, l, 1, harness.Judged(t, 1, messages)...)
	file := filepath.Join(t.TempDir(), "cnp.pcapng")
	stop := harness.StartCapture(t, client.socket, file)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	const write = "ib_write_bw -d rdma0 -x 1 -F -s 65536 --tclass=106 -D 60 -p %d"
	serving := server.Start(ctx, t, fmt.Sprintf(write, port))
	if err := server.WaitListening(ctx, serving, port); err != nil {
		t.Fatalf("%v: %s", err, serving.Output())
	}
	job := client.Start(ctx, t, fmt.Sprintf(write, port)+" "+server.Host)
	client.awaitRate(t, job, "was limited", func(rate int64) bool { return rate == 0 && client.counter(t, "port_xmit_packets") > 200 })
	first, last, err := server.operator.AddFaults(ctx, "mark receive kind write every 2")
	if err != nil || first != last {
		t.Fatalf("rules %d to %d: %v", first, last, err)
	}
	client.awaitRate(t, job, "was not halved", func(rate int64) bool { return rate != 0 && rate < 250e6 })
	if err := server.operator.RemoveFault(ctx, first); err != nil {
		t.Fatal(err)
	}
	client.awaitRate(t, job, "did not recover", func(rate int64) bool {
		return rate == 0 && client.counter(t, "port_xmit_packets") > 2*messages*packetsEach
	})
	stop()
	cancel()
	job.Wait()
	serving.Wait()

	marked, sent, handled := server.counter(t, "np_ecn_marked_roce_packets"), server.counter(t, "np_cnp_sent"), client.counter(t, "rp_cnp_handled")
	if marked == 0 || sent == 0 || sent > marked || handled == 0 || handled > sent {
		t.Errorf("%d packets were marked, %d CNPs sent, %d handled", marked, sent, handled)
	}
	ps, err := capture.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	cnps := 0
	for _, p := range ps {
		if p.Opcode != packet.OpcodeCNP {
			continue
		}
		if cnps++; p.TClass>>2 != 48 || !p.BECN || p.Src.String() != server.Host {
			t.Errorf("packet %d: a CNP of %v with DSCP %d, BECN %v", p.No, p.Src, p.TClass>>2, p.BECN)
		}
	}
	if cnps == 0 {
		t.Error("the capture has no CNP")
	}
}

// The kernel neither marks packets nor knows CNPs. Marks on packets in either direction change
// nothing for it.
func TestMarksWithKernel(t *testing.T) {
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		operator, err := control.Dial(t.Context(), s.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer operator.Close()
		if _, _, err := operator.AddFaults(t.Context(), "mark every 2"); err != nil {
			t.Fatal(err)
		}
		c := exchange{ops: impairedOps, client: optionsWith(), server: optionsWith()}
		for _, kernelServes := range []bool{false, true} {
			t.Run(fmt.Sprintf("kernel serves=%v", kernelServes), func(t *testing.T) {
				runExchange(t, s, harness.IPVersions[0], c, !kernelServes)
			})
		}
		marked := &markedEnd{operator: operator}
		if n, sent := marked.counter(t, "np_ecn_marked_roce_packets"), marked.counter(t, "np_cnp_sent"); n == 0 || sent == 0 {
			t.Errorf("%d packets were marked, %d CNPs sent", n, sent)
		}
	})
}
