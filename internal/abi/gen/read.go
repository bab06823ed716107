package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	goconstant "go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A definition is the content of the C header, in the order of the Go source.
type definition struct {
	items []any // group or record
	names map[string]string
}

// A group is a const declaration.
type group struct {
	doc    string
	consts []constDef
}

type constDef struct {
	name  string // in C
	value string
	note  string
}

// A record is a struct.
type record struct {
	doc    string
	name   string // in C
	fields []field
	size   int64
}

type field struct {
	name   string // in C; "" is padding
	ctype  string
	count  int64 // elements of an array, 0 if it is none
	offset int64
	size   int64
	note   string
}

// sources are the files that define the layout, in the order of the header.
var sources = []string{"ring.go", "slots.go", "messages.go", "objects.go", "operator.go", "cm.go"}

// findGOROOT tells the importer where the standard library is, which a program that was built with
// -trimpath does not know.
func findGOROOT() error {
	if build.Default.GOROOT != "" {
		return nil
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	build.Default.GOROOT = strings.TrimSpace(string(root))
	return nil
}

// read reads the definition from the Go source.
func read(dir string) (*definition, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range sources {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if err := findGOROOT(); err != nil {
		return nil, err
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{IgnoreFuncBodies: true, Importer: importer.ForCompiler(fset, "source", nil)}).Check("abi", fset, files, info); err != nil {
		return nil, err
	}
	d := &definition{names: map[string]string{}}
	for id, o := range info.Defs {
		switch o.(type) {
		case *types.Const:
			d.names[id.Name] = constant(id.Name)
		case *types.TypeName:
			d.names[id.Name] = "struct softroce_" + snake(id.Name)
		}
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			if g, ok := decl.(*ast.GenDecl); ok {
				if err := d.declaration(g, info); err != nil {
					return nil, err
				}
			}
		}
	}
	return d, nil
}

func (d *definition) declaration(g *ast.GenDecl, info *types.Info) error {
	switch g.Tok {
	case token.CONST:
		gr := group{doc: d.translate(g.Doc.Text())}
		for _, s := range g.Specs {
			s := s.(*ast.ValueSpec)
			for _, id := range s.Names {
				v := info.Defs[id].(*types.Const).Val()
				if v.Kind() != goconstant.Int {
					return fmt.Errorf("constant %s is not an integer", id.Name)
				}
				gr.consts = append(gr.consts, constDef{d.names[id.Name], v.ExactString(), d.translate(s.Comment.Text())})
			}
		}
		d.items = append(d.items, gr)
	case token.TYPE:
		for _, s := range g.Specs {
			s := s.(*ast.TypeSpec)
			st, ok := s.Type.(*ast.StructType)
			if !ok {
				return fmt.Errorf("type %s is not a struct", s.Name.Name)
			}
			r, err := d.record(s.Name.Name, st, info.Defs[s.Name].Type().Underlying().(*types.Struct))
			if err != nil {
				return err
			}
			r.doc = d.translate(fieldNames(g.Doc.Text(), st))
			d.items = append(d.items, r)
		}
	}
	return nil
}

// fieldNames replaces the names of st's fields in a comment by their C names. Names without an
// underscore in C stay: they may be words of the sentence.
func fieldNames(comment string, st *ast.StructType) string {
	for _, f := range st.Fields.List {
		for _, id := range f.Names {
			if c := snake(id.Name); strings.Contains(c, "_") {
				comment = regexp.MustCompile(`\b`+id.Name+`\b`).ReplaceAllLiteralString(comment, c)
			}
		}
	}
	return comment
}

// record computes the layout of a struct, which is the same in Go and C. It fails if padding is not
// explicit.
func (d *definition) record(name string, src *ast.StructType, t *types.Struct) (record, error) {
	r := record{name: d.names[name]}
	var notes []string
	for _, f := range src.Fields.List {
		for range max(1, len(f.Names)) {
			notes = append(notes, d.translate(f.Comment.Text()))
		}
	}
	sizes := types.SizesFor("gc", "amd64")
	var vars []*types.Var
	for v := range t.Fields() {
		vars = append(vars, v)
	}
	offsets := sizes.Offsetsof(vars)
	packed := int64(0)
	for i, v := range vars {
		f := field{name: snake(v.Name()), offset: offsets[i], size: sizes.Sizeof(v.Type()), note: notes[i]}
		if v.Name() == "_" {
			f.name = ""
		}
		var err error
		if f.ctype, f.count, err = d.ctype(v.Type()); err != nil {
			return r, fmt.Errorf("%s.%s: %w", name, v.Name(), err)
		}
		if f.offset != packed {
			return r, fmt.Errorf("%s.%s: %d bytes of padding before it are not explicit", name, v.Name(), f.offset-packed)
		}
		packed += f.size
		r.fields = append(r.fields, f)
	}
	if r.size = sizes.Sizeof(t); r.size != packed {
		return r, fmt.Errorf("%s: %d bytes of padding at its end are not explicit", name, r.size-packed)
	}
	return r, nil
}

func (d *definition) ctype(t types.Type) (name string, count int64, err error) {
	switch t := t.(type) {
	case *types.Array:
		name, inner, err := d.ctype(t.Elem())
		if inner != 0 {
			err = errors.New("arrays of arrays are not supported")
		}
		return name, t.Len(), err
	case *types.Named:
		return d.names[t.Obj().Name()], 0, nil
	case *types.Basic:
		switch t.Kind() {
		case types.Uint8:
			return "uint8_t", 0, nil
		case types.Uint16:
			return "uint16_t", 0, nil
		case types.Int32:
			return "int32_t", 0, nil
		case types.Uint32:
			return "uint32_t", 0, nil
		case types.Uint64:
			return "uint64_t", 0, nil
		}
	}
	return "", 0, fmt.Errorf("type %v is not supported in the ABI", t)
}
