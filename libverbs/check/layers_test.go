package check

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// layers are the folders of libverbs in their order: a folder uses only those that stand before it.
var layers = []string{"core", "paths", "memory", "ibverbs", "rdmacm", "rsocket"}

// object is what an object file defines for other files, and what it uses of them.
type object struct {
	layer         int
	file          string
	defines, uses []string
}

// interposed are functions of the C library that a folder defines for the program.
var interposed = []string{"free", "realloc", "mmap", "munmap"}

// objects reads the object files of all layers.
func objects(t *testing.T) []object {
	t.Helper()
	var all []object
	for i, folder := range layers {
		sources, err := filepath.Glob(filepath.Join("..", folder, "*.c"))
		if err != nil || len(sources) == 0 {
			t.Fatalf("%s: no C files, %v", folder, err)
		}
		for _, source := range sources {
			file := filepath.Join(folder, strings.TrimSuffix(filepath.Base(source), ".c"))
			f, err := elf.Open(filepath.Join(library(t), "obj", file+".o"))
			if err != nil {
				t.Fatal(err)
			}
			symbols, err := f.Symbols()
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			o := object{layer: i, file: file}
			for _, s := range symbols {
				switch {
				case elf.ST_BIND(s.Info) == elf.STB_LOCAL:
				case slices.Contains(interposed, s.Name):
				case s.Section == elf.SHN_UNDEF:
					o.uses = append(o.uses, s.Name)
				default:
					o.defines = append(o.defines, s.Name)
				}
			}
			all = append(all, o)
		}
	}
	return all
}

func TestFoldersReferToLowerFoldersOnly(t *testing.T) {
	all := objects(t)
	defined := map[string]object{}
	for _, o := range all {
		for _, name := range o.defines {
			defined[name] = o
		}
	}
	for _, o := range all {
		for _, name := range o.uses {
			if by, ok := defined[name]; ok && by.layer > o.layer {
				t.Errorf("%s uses %s of %s, which is a higher folder (order: %v)", o.file, name, by.file, layers)
			}
		}
	}
}

func TestFoldersIncludeHeadersOfLowerFoldersOnly(t *testing.T) {
	include := regexp.MustCompile(`(?m)^#include "([^"]*)"`)
	for i, folder := range layers {
		files, err := filepath.Glob(filepath.Join("..", folder, "*.[ch]"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no C files, %v", folder, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range include.FindAllStringSubmatch(string(text), -1) {
				of, _, _ := strings.Cut(m[1], "/")
				if n := slices.Index(layers, of); n < 0 || n > i {
					t.Errorf("%s includes %s: want folder/header of %v", file, m[1], layers[:i+1])
				}
			}
		}
	}
}

// TestFilesFormNoCycle fails if files refer to each other directly or through others.
func TestFilesFormNoCycle(t *testing.T) {
	all := objects(t)
	defined := map[string]string{}
	for _, o := range all {
		for _, name := range o.defines {
			defined[name] = o.file
		}
	}
	uses := map[string][]string{}
	for _, o := range all {
		for _, name := range o.uses {
			if file, ok := defined[name]; ok && file != o.file {
				uses[o.file] = append(uses[o.file], file)
			}
		}
	}
	finished := map[string]bool{}
	var visit func(path []string)
	visit = func(path []string) {
		file := path[len(path)-1]
		if i := slices.Index(path[:len(path)-1], file); i >= 0 {
			t.Errorf("cycle: %s", strings.Join(path[i:], " uses "))
			return
		}
		if finished[file] {
			return
		}
		for _, next := range uses[file] {
			visit(append(slices.Clone(path), next))
		}
		finished[file] = true
	}
	for _, o := range all {
		visit([]string{o.file})
	}
}
