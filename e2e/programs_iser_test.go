package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

const (
	iserTarget    = "iqn.2026-01.test.softroce:disk"
	iserInitiator = "iqn.2026-01.test.softroce:client"
	iserDiskSize  = 4 << 20
)

// iserTests are tests of libiscsi's iscsi-test-cu. The first one reads blocks and sends them back
// for the target to compare.
var iserTests = []string{"SCSI.Verify10.Simple", "SCSI.Write16.Simple"}

// TestISCSIOverRDMA uses a disk of Linux's tgtd with the programs of libiscsi, over iSER. tgtd
// accepts a login over iSER if the address and the name of the initiator are both in its lists,
// while over TCP either is enough.
func TestISCSIOverRDMA(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	for _, name := range []string{"tgtd", "tgtadm", "iscsi-inq", "iscsi-test-cu"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	client, server := harness.FabricPair(t, harness.Judged(t, 5, 2000)...)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel() // ends tgtd
	dir := harness.ShortDir(t)
	socket := "TGT_IPC_SOCKET=" + filepath.Join(dir, "ipc")
	disk := filepath.Join(dir, "disk")
	content := make([]byte, iserDiskSize)
	rand.Read(content)
	if err := os.WriteFile(disk, content, 0o600); err != nil {
		t.Fatal(err)
	}

	port := harness.FreePort()
	target := server.Start(ctx, t, fmt.Sprintf("tgtd -f --iscsi portal=127.0.0.1:%d --iser port=%d,pool_sz_mb=64", port, port), socket)
	administer := func(command string) error {
		cmd := exec.CommandContext(ctx, "tgtadm", strings.Fields(command)...)
		cmd.Env = append(os.Environ(), socket)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("tgtadm %s: %w\n%s", command, err, out)
		}
		return nil
	}
	for administer("--mode sys --op show") != nil {
		if !target.Running() || ctx.Err() != nil {
			cancel()
			out, err := target.Wait()
			t.Fatalf("tgtd: %v\n%s", err, out)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, command := range []string{
		"--lld iser --mode target --op new --tid 1 --targetname " + iserTarget,
		"--lld iser --mode target --op bind --tid 1 --initiator-address ALL",
		"--lld iser --mode target --op bind --tid 1 --initiator-name " + iserInitiator,
		"--lld iser --mode logicalunit --op new --tid 1 --lun 1 --backing-store " + disk,
	} {
		if err := administer(command); err != nil {
			t.Fatal(err)
		}
	}

	lun := fmt.Sprintf("iser://%s:%d/%s/1", server.Addr[false], port, iserTarget)
	run := func(command, want string) {
		t.Helper()
		out, err := client.Start(ctx, t, command+" "+lun).Wait()
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s\ntgtd:\n%s", command, err, out, target.Output())
		}
	}
	run("iscsi-inq -i "+iserInitiator, "Product:VIRTUAL-DISK")
	for _, name := range iserTests {
		run("iscsi-test-cu -i "+iserInitiator+" -I "+iserInitiator+" --dataloss --fail --test="+name, "...passed")
	}
	if now, err := os.ReadFile(disk); err != nil || bytes.Equal(now, content) {
		t.Errorf("nothing was written to the disk: %v", err)
	}
}
