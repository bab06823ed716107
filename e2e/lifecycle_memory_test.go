package e2e

import (
	"errors"
	"path/filepath"
	"testing"

	"softroce/e2e/harness"
	"softroce/nic/nictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// TestDaemonEndsWhileMemoryDoesNotAnswer has a program send from memory whose page fault is not
// served, and another one meanwhile. The daemon must end cleanly all the same.
func TestDaemonEndsWhileMemoryDoesNotAnswer(t *testing.T) {
	harness.NeedRoot(t, "userfaultfd")
	const pages, missing = 16, 8
	slow, err := nictest.NewPages(pages)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	// Registration reads the first page and the last one.
	if err := errors.Join(slow.Serve(0, missing), slow.Serve(missing+1, pages-missing-1)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	daemon := harness.StartDaemon(t, nil, "--socket", socket)
	harness.OpenNIC(t, daemon, socket).Close()
	open := func(device string) *verbs.Context {
		c, err := verbs.Open(t.Context(), device, verbs.WithSocket(socket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	x, y := verbstest.ConnectedRC(t, open("softroce0"), open("softroce1"))
	mr, err := x.PD.RegMR(t.Context(), slow.Bytes, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	err = x.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{mr.SGE(missing*nictest.PageSize, 64)},
		RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	if err != nil {
		t.Fatal(err)
	}
	runNewcomer(t, socket)
	daemon.Stop(t)
}
