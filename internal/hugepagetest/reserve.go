// Package hugepagetest reserves huge pages for tests.
package hugepagetest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/"

// Reserve makes the kernel reserve n more huge pages of 2 MiB until the test ends, as an
// administrator would. It fails without root, without huge pages in the kernel, and if memory is
// short or fragmented. Tests of other processes may reserve pages at the same time, so none may use
// its own when it ends: the kernel would take free ones of another test instead.
func Reserve(t testing.TB, n int) error {
	t.Helper()
	got, err := add(n)
	t.Cleanup(func() {
		if _, err := add(-got); err != nil {
			t.Errorf("releasing huge pages: %v", err)
		}
	})
	if err == nil && got < n {
		err = fmt.Errorf("the kernel reserved %d huge pages, want %d: memory is short or fragmented", got, n)
	}
	return err
}

// add changes the number of pages by n and returns by how many it changed. A lock keeps the changes
// of tests apart.
func add(n int) (int, error) {
	if n == 0 {
		return 0, nil
	}
	f, err := os.OpenFile(pool+"nr_hugepages", os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return 0, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	before, err := count()
	if err != nil {
		return 0, err
	}
	_, err = f.WriteString(strconv.Itoa(before + n))
	after, countErr := count()
	return after - before, errors.Join(err, countErr)
}

// count returns how many pages there are that the kernel keeps when they are free.
func count() (int, error) {
	all, err := read("nr_hugepages")
	surplus, surplusErr := read("surplus_hugepages")
	return all - surplus, errors.Join(err, surplusErr)
}

func read(name string) (int, error) {
	b, err := os.ReadFile(pool + name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
