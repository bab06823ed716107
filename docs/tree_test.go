// Package docs_test holds the documentation to the tree: the folders that
// docs/internals/architecture.md names, the direction of imports that it promises, and the names
// that docs/internals/map.md gives for each file.
package docs_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = ".."
	module = "softroce"
)

// folders returns the folder table of architecture.md: each folder with its layer, 0 if it has
// none.
func folders(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("internals/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## The folders\n")
	if !found {
		t.Fatal("architecture.md has no section The folders")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	table := map[string]int{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)/` \\| *(\\d*) *\\| \\S").FindAllStringSubmatch(section, -1) {
		if _, twice := table[row[1]]; twice {
			t.Errorf("architecture.md has two rows for %s/", row[1])
		}
		layer := 0
		if row[2] != "" {
			layer, _ = strconv.Atoi(row[2])
		}
		table[row[1]] = layer
	}
	return table
}

// TestFolderTableNamesEveryFolder compares the folders that hold files with the rows of the table.
func TestFolderTableNamesEveryFolder(t *testing.T) {
	table := folders(t)
	built := []string{"bin", "dist", "internal/run/lib"} // by make
	var tree []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "__pycache__" || slices.Contains(built, name) {
				return fs.SkipDir
			}
			return nil
		}
		if folder := filepath.Dir(name); folder != "." && !slices.Contains(tree, folder) {
			tree = append(tree, folder)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range tree {
		if _, listed := table[folder]; !listed {
			t.Errorf("architecture.md has no row for %s/", folder)
		}
	}
	for folder := range table {
		if !slices.Contains(tree, folder) {
			t.Errorf("architecture.md has a row for %s/, which holds no file", folder)
		}
	}
}

// TestTopLevelStaysSmall bounds the folders that a newcomer sees first.
func TestTopLevelStaysSmall(t *testing.T) {
	const most = 18
	var top []string
	for folder := range folders(t) {
		if first, _, _ := strings.Cut(folder, "/"); !slices.Contains(top, first) {
			top = append(top, first)
		}
	}
	if len(top) > most {
		slices.Sort(top)
		t.Errorf("%d folders at the top, at most %d: %v", len(top), most, top)
	}
}

// TestImportsPointDown holds every import of a package to a layer below its own.
func TestImportsPointDown(t *testing.T) {
	table := folders(t)
	// With a profile, the list names packages of the daemon twice.
	list := exec.Command("go", "list", "-pgo=off", "-json=ImportPath,Imports", "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := 0
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, path := range p.Imports {
			to, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			imports++
			if table[to] == 0 || table[from] == 0 || table[to] >= table[from] {
				t.Errorf("%s (layer %d) imports %s (layer %d)", from, table[from], to, table[to])
			}
		}
	}
	if imports < 100 {
		t.Errorf("only %d imports were examined", imports)
	}
}
