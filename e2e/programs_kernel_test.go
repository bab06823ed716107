package e2e

import (
	"fmt"
	"os"
	"testing"
)

// wholeMatrix, in the environment, has every row run in both roles over both address families. Without it a row is run
// once in each role, and once over each family: where the kernel serves even rows over IPv4, odd ones over IPv6.
const wholeMatrix = "SOFTROCE_E2E_MATRIX"

// TestProgramsWithTheKernel runs each row of the table against its like in a guest.
func TestProgramsWithTheKernel(t *testing.T) {
	needRoot(t, "network namespaces and a guest's network")
	links[0].lane.take(t)
	s := newSite(t, links[0])
	us, them := s.beside(t), inGuest(s.guest)
	for i, r := range rows {
		for j, role := range []string{"kernel serves", "kernel connects"} {
			client, server := us, them
			if j == 1 {
				client, server = them, us
			}
			for k, v := range ipVersions {
				if r.refuses != nil && r.ours == "" || !r.meets(i+j+k, v) {
					continue
				}
				patient := r
				patient.options += " " + r.family.patience
				t.Run(fmt.Sprintf("%s/%s/%s", r.name(), v.name, role), func(t *testing.T) {
					t.Parallel()
					patient.run(t, client, server, v.ipv6)
				})
			}
		}
	}
}

// meets reports whether a row is run over an address family; n counts rows, roles and families.
func (r row) meets(n int, v ipVersion) bool {
	whole := os.Getenv(wholeMatrix) != ""
	switch {
	case r.family.turns:
		return !v.ipv6
	case r.long:
		return whole
	default:
		return whole || n%2 == 0
	}
}

// TestWhatTheKernelRefuses holds the rows that are left out with the kernel, and the options that it is not given,
// against the kernel's NIC by itself.
func TestWhatTheKernelRefuses(t *testing.T) {
	needRoot(t, "a guest")
	links[0].lane.take(t)
	s := newSite(t, links[0])
	them := inGuest(s.guest)
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
}
