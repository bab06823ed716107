package rxelab

import (
	"errors"
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

func TestDamageOfAKernelIsFound(t *testing.T) {
	for console, want := range map[string]string{
		"link rxe0/1 state ACTIVE\n[   15.8] rxe0: cq#14 rxe_cq_post: queue full\n":                     "",
		"[    1.0] rxe0: ok\n[    2.0] rxe0: qp#17 rxe_destroy_qp: cleanup failed, err = -110\nlater\n": "[    2.0] rxe0: qp#17 rxe_destroy_qp: cleanup failed, err = -110",
		"[    3.0] BUG: kernel NULL pointer dereference, address: 0000000000000008\r\n":                 "[    3.0] BUG: kernel NULL pointer dereference, address: 0000000000000008",
	} {
		t.Setenv("RXELAB_STATE", t.TempDir())
		l := &Lab{Guests: []*Guest{{}}}
		if err := os.WriteFile(l.console(0), []byte(console), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Damage(); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", console, got, err, want)
		}
	}
}

func TestConsolesAreSaved(t *testing.T) {
	t.Setenv("RXELAB_STATE", t.TempDir())
	l := &Lab{name: "lab", Guests: []*Guest{{}, {}}}
	to := t.TempDir()
	if err := l.SaveConsoles(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without consoles: %v", err)
	}
	const screen = "\x1b[2J\x1b[0mlab: ready\n" // with escape sequences, as firmware writes them
	for n := range l.Guests {
		if err := os.WriteFile(l.console(n), []byte(screen), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.SaveConsoles(to); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lab-vm1.console", "lab-vm2.console"} {
		if text, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(text) != screen {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
