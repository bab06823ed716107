package e2e

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/e2e/harness"
)

// TestMain runs the tests, or, in a process that startAttack started, an attack.
func TestMain(m *testing.M) {
	if name := os.Getenv(attackEnv); name != "" {
		lowerPriority()
		attacks[name]()
		return
	}
	os.Exit(harness.Main(m))
}

// lowerPriority gives the threads of this process, and those that they create, the usual priority.
func lowerPriority() {
	threads, err := filepath.Glob("/proc/self/task/*")
	for _, path := range threads {
		id, _ := strconv.Atoi(filepath.Base(path))
		err = errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, id, 0))
	}
	if err != nil {
		log.Fatal(err)
	}
}
