package rxelab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestSweepNamespacesKeepsLiveOwners creates namespaces as tests do, one of them by a process that
// has ended, with a program in it.
func TestSweepNamespacesKeepsLiveOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("softroce-sweep%d-", os.Getpid())
	dead := fmt.Sprintf("%s%d-a", prefix, ended.Process.Pid)
	kept := []string{
		fmt.Sprintf("%s%d-a", prefix, os.Getpid()),        // its process runs
		fmt.Sprintf("%sa-%d", prefix, ended.Process.Pid),  // no process ID
		fmt.Sprintf("x%s%d-a", prefix, ended.Process.Pid), // another prefix
		fmt.Sprintf("%s-%d-a", prefix, ended.Process.Pid), // another prefix
	}
	for _, name := range append(kept, dead) {
		if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	}
	inside := exec.Command("ip", "netns", "exec", dead, "sleep", "1000")
	outside := exec.Command("ip", "netns", "exec", kept[0], "sleep", "1000")
	for _, c := range []*exec.Cmd{inside, outside} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // wait until it runs
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid)); err == nil && string(name) == "sleep\n" {
				break
			}
			if time.Now().After(limit) {
				t.Fatal("the program did not start")
			}
		}
	}
	if err := SweepNamespaces(t.Context(), prefix); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, dead)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dead, err)
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(netnsDir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := inside.Wait(); err == nil || inside.ProcessState.String() != "signal: killed" {
		t.Errorf("the program in the namespace: %v", inside.ProcessState)
	}
	outside.Process.Kill()
	outside.Wait()
}

func TestSweepDirectoriesKeepsLiveOwners(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	pid := ended.Process.Pid
	dead := fmt.Sprintf("swept-%d-123", pid)
	kept := []string{
		fmt.Sprintf("swept-%d-123", os.Getpid()), fmt.Sprintf("swept-%d", pid), fmt.Sprintf("swept-x%d-1", pid), fmt.Sprintf("other-%d-1", pid),
	}
	for _, name := range append(kept, dead) {
		if err := os.MkdirAll(filepath.Join(dir, name, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepDirectories("swept-"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, dead)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dead, err)
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(dir, name, "sub")); err != nil {
			t.Error(err)
		}
	}
}
