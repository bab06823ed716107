package e2e

import (
	"context"
	"errors"
	"fmt"
	"softroce/e2e/harness"
	"testing"
)

// TestProgramsWithTheKernel runs each row of the table against its like in a guest: once in each role, and once over each
// address family. Where the kernel serves, even rows are run over IPv4 and odd ones over IPv6; where it connects, the other way round.
// With another kernel a row is run in one role: even rows where the kernel serves. Long ones are run in the other role with the first kernel.
func TestProgramsWithTheKernel(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	harness.Links[0].Exclusive.Acquire(t)
	s := harness.NewTestbed(t, harness.Links[0])
	us, them := s.Endpoint(t), harness.OnGuest(s.Guest)
	for i, r := range rows {
		for j, role := range []string{"kernel serves", "kernel connects"} {
			client, server := us, them
			if j == 1 {
				client, server = them, us
			}
			for k, v := range harness.IPVersions {
				if r.refuses != nil && r.ours == "" || !r.meets(i, j, k) {
					continue
				}
				patient := r
				patient.options += " " + r.family.patience
				t.Run(fmt.Sprintf("%s/%s/%s", r.name(), v.Name, role), func(t *testing.T) {
					t.Parallel()
					patient.run(t, client, server, v.IPv6)
				})
			}
		}
	}
}

// meets reports whether the i-th row is run in a role, over an address family of ipVersions.
func (r row) meets(i, role, version int) bool {
	switch {
	case r.family.turns && harness.IPVersions[version].IPv6:
		return false
	case r.ordered && harness.OtherKernel():
		return false // see TestTheKernelsOrderOfCompletions
	case whole():
		return true
	case harness.OtherKernel() && (i+role)%2 != 0, r.long && !harness.OtherKernel() && (i+role)%2 == 0:
		return false
	default:
		return r.family.turns || (i+role+version)%2 == 0
	}
}

// TestWhatTheKernelRefuses holds the rows that are left out with the kernel, the options that it is not given, and the end that
// a program may come to there, against the kernel's NIC by itself.
func TestWhatTheKernelRefuses(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.Links[0].Exclusive.Acquire(t)
	s := harness.NewTestbed(t, harness.Links[0])
	them := harness.OnGuest(s.Guest)
	for _, r := range rows {
		if r.refuses == nil {
			continue
		}
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			alone := r
			alone.options, alone.ours = r.options+" "+r.ours, ""
			if out := alone.fails(t, them); !r.refuses.MatchString(out) {
				t.Errorf("want it refused with %v\n%s", r.refuses, out)
			}
		})
	}
	for _, c := range conversations {
		for _, v := range c.versions() {
			if c.refuses != nil {
				t.Run(c.name+"/"+v.Name, func(t *testing.T) { c.isRefused(t, them, v.IPv6) })
			}
			if c.hangsUp {
				t.Run(c.name+"/"+v.Name, func(t *testing.T) { c.hangsUpAtTimes(t, them, v.IPv6) })
			}
		}
	}
}

// isRefused wants the client of a conversation to fail, with both ends there.
func (c *cmTalk) isRefused(t *testing.T, there harness.Endpoint, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	server, serverErr := c.words(c.server, &there, &there, ipv6)
	client, clientErr := c.words(c.client, &there, &there, ipv6)
	if err := errors.Join(serverErr, clientErr); err != nil {
		t.Fatal(err)
	}
	serving := there.Start(ctx, t, server)
	out, err := there.Start(ctx, t, client).Wait()
	cancel()
	serving.Wait()
	if err == nil || !c.refuses.MatchString(out) {
		t.Errorf("%v, want it refused with %v\n%s", err, c.refuses, out)
	}
}

// hangsUpAtTimes wants the client of a conversation to take its server's end for an error sooner or later, with both ends there.
func (c *cmTalk) hangsUpAtTimes(t *testing.T, there harness.Endpoint, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	for tries := 1; ; tries++ {
		switch s := c.talk(ctx, t, there, there, ipv6); {
		case c.hungUp(s.out, s.err) && s.serverErr == nil:
			t.Logf("after %d tries", tries)
			return
		case s.err != nil || s.serverErr != nil:
			t.Fatalf("client: %v\n%s\nserver: %v\n%s", s.err, s.out, s.serverErr, s.serverOut)
		}
	}
}
