package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			r := Play(f, Options{})
			switch {
			case errors.Is(r.Err, ErrSkipped):
				t.Skip(r.Err)
			case r.Err != nil:
				t.Error(r.Log)
			case testing.Verbose():
				t.Log(r.Log)
			}
		})
	}
}

// play plays a scenario that is given as text.
func play(t *testing.T, script string) *Result {
	t.Helper()
	f := filepath.Join(t.TempDir(), "it.txt")
	if err := os.WriteFile(f, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return Play(f, Options{})
}
