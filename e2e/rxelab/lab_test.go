package rxelab

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDirIsFoundFromTheSourceTree(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{".", "probe", "..", "../.."} {
		t.Chdir(filepath.Join(here, at))
		if got := Dir(); got != here {
			t.Errorf("in %s: %s, want %s", at, got, here)
		}
	}
}
