package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"softroce/e2e/harness"
	"softroce/e2e/verbspeer"
)

// TestKernelCaptureReplays captures the daemon's traffic with the kernel and replays it: a new
// softroce must answer the kernel's requests as the daemon did, and the daemon's requests as the
// kernel did.
func TestKernelCaptureReplays(t *testing.T) {
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		bin := harness.Binary(t)
		large := func(o *verbspeer.Options) { o.RecvSize = 128 << 10 }
		families := harness.IPVersions
		if !s.OnFirstLink() {
			families = families[1:]
		}
		for _, v := range families {
			t.Run(v.Name, func(t *testing.T) {
				file := filepath.Join(t.ArtifactDir(), "daemon.pcapng")
				stop := harness.StartCapture(t, s.Socket, file)
				runInBothRoles(t, s, v, []exchange{
					{name: "every operation", ops: operations(1024), client: optionsWith(large), server: optionsWith(large)},
				})
				stop()
				if out, err := exec.Command(bin, "replay", file).CombinedOutput(); err != nil {
					t.Errorf("replay: %v\n%s", err, out)
				}
			})
		}
	})
}
