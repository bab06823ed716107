package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"softroce/e2e/harness"
	"testing"
)

// TestPingpongsWithKernel runs the rows of the pingpong programs. No option raises their ACK
// timeout: a queue pair whose peer has never answered gives up after 0.54 s. So they do not run in
// parallel with other tests, and the guest has processors before other programs, which could keep
// it from them for that long.
func TestPingpongsWithKernel(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	s := harness.NewTestbed(t, harness.Links[0])
	restore, err := s.Lab.Prioritize()
	switch {
	case errors.Is(err, os.ErrPermission):
		t.Logf("not allowed here, so rows may fail on a busy machine: %v", err)
	case err != nil:
		t.Fatal(err)
	default:
		defer func() {
			if err := restore(); err != nil {
				t.Error(err)
			}
		}()
	}
	runWithKernel(t, s, func(r programRun) bool { return r.family.fixedTimeout })
}

// TestProgramsWithKernel runs the other rows.
func TestProgramsWithKernel(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	harness.Links[0].Exclusive.Acquire(t)
	runWithKernel(t, harness.NewTestbed(t, harness.Links[0]), func(r programRun) bool { return !r.family.fixedTimeout })
}

// runWithKernel runs each program of some rows with the same program in a guest, once in each role
// and once over each address family. If the kernel serves, even rows use IPv4 and odd rows IPv6; if
// it connects, it is the other way round. With another kernel than the stable one, a row runs in
// one role: even rows where the kernel serves. Slow rows run in the other role with the stable
// kernel. One row runs at a time, since the guest has one processor.
func runWithKernel(t *testing.T, s *harness.Testbed, belongs func(programRun) bool) {
	softroce, kernel := s.Endpoint(t), harness.OnGuest(s.Guest)
	for i, r := range programRuns {
		if !belongs(r) {
			continue
		}
		for j, role := range []string{"kernel serves", "kernel connects"} {
			client, server := softroce, kernel
			if j == 1 {
				client, server = kernel, softroce
			}
			for k, v := range harness.IPVersions {
				if r.kernelError != nil && r.softroceOptions == "" || !r.selected(i, j, k) {
					continue
				}
				patient := r
				patient.options += " " + r.family.slowPeerOptions
				t.Run(fmt.Sprintf("%s/%s/%s", r.name(), v.Name, role), func(t *testing.T) {
					patient.run(t, client, server, v.IPv6)
				})
			}
		}
	}
}

// selected reports whether the i-th row runs in a role and over an address family, an index of
// harness.IPVersions.
func (r programRun) selected(i, role, version int) bool {
	switch {
	case r.family.rdmacm && harness.IPVersions[version].IPv6:
		return false
	case r.needsCompletionOrder && harness.OtherKernel():
		return false // see TestKernelCompletionOrder
	case runWholeMatrix():
		return true
	case harness.OtherKernel() && (i+role)%2 != 0, r.slow && !harness.OtherKernel() && (i+role)%2 == 0:
		return false
	default:
		return r.family.rdmacm || (i+role+version)%2 == 0
	}
}

// TestKernelRefusesUnsupportedPrograms runs the rows and options that are skipped with the kernel
// between two endpoints on the kernel's NIC, and expects them to fail there too. It also shows that
// the errors that are tolerated at the end of a program occur there.
func TestKernelRefusesUnsupportedPrograms(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.Links[0].Exclusive.Acquire(t)
	s := harness.NewTestbed(t, harness.Links[0])
	kernel := harness.OnGuest(s.Guest)
	for _, r := range programRuns {
		if r.kernelError == nil {
			continue
		}
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			alone := r
			alone.options, alone.softroceOptions = r.options+" "+r.softroceOptions, ""
			if out := alone.expectErrors(t, kernel); !r.kernelError.MatchString(out) {
				t.Errorf("want an error that matches %v\n%s", r.kernelError, out)
			}
		})
	}
	for _, c := range cmExchanges {
		for _, v := range c.versions() {
			if c.kernelError != nil {
				t.Run(c.name+"/"+v.Name, func(t *testing.T) { c.expectKernelError(t, kernel, v.IPv6) })
			}
			if c.mayHangUp {
				t.Run(c.name+"/"+v.Name, func(t *testing.T) { c.expectHangUp(t, kernel, v.IPv6) })
			}
		}
	}
}

// expectKernelError expects the client to fail with both endpoints on the kernel's NIC.
func (c *cmExchange) expectKernelError(t *testing.T, e harness.Endpoint, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	server, serverErr := c.commandLine(c.server, &e, &e, ipv6)
	client, clientErr := c.commandLine(c.client+" "+c.kernelOptions, &e, &e, ipv6)
	if err := errors.Join(serverErr, clientErr); err != nil {
		t.Fatal(err)
	}
	serverJob := e.Start(ctx, t, server)
	out, err := e.Start(ctx, t, client).Wait()
	cancel()
	serverJob.Wait()
	if err == nil || !c.kernelError.MatchString(out) {
		t.Errorf("%v, want an error that matches %v\n%s", err, c.kernelError, out)
	}
}

// expectHangUp repeats an exchange on the kernel's NIC until the client treats the end of its
// server as an error.
func (c *cmExchange) expectHangUp(t *testing.T, e harness.Endpoint, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	for tries := 1; ; tries++ {
		switch s := c.exchange(ctx, t, e, e, ipv6); {
		case c.hungUp(s.out, s.err) && s.serverErr == nil:
			t.Logf("after %d tries", tries)
			return
		case s.err != nil || s.serverErr != nil:
			t.Fatalf("client: %v\n%s\nserver: %v\n%s", s.err, s.out, s.serverErr, s.serverOut)
		}
	}
}
