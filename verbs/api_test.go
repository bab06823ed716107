package verbs_test

import (
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is the prefix of this module's import paths.
const module = "softroce/"

// publicPackages are those that programs import.
var publicPackages = []string{
	"softroce/capture", "softroce/packet", "softroce/verbs", "softroce/verbs/rdmacm", "softroce/verbs/verbstest",
}

func TestPublicPackagesExposeOnlyPublicTypes(t *testing.T) {
	packages := importAll(t, publicPackages...)
	for _, path := range publicPackages {
		w := apiWalk{pkg: packages[path], seen: map[types.Type]bool{}}
		for _, name := range w.pkg.Scope().Names() {
			if o := w.pkg.Scope().Lookup(name); o.Exported() {
				w.object(o)
			}
		}
		for _, e := range w.exposed {
			t.Errorf("%s: %s", path, e)
		}
		if len(w.seen) == 0 {
			t.Errorf("%s: no types found", path)
		}
	}
}

// importAll reads packages from the build cache.
func importAll(t *testing.T, paths ...string) map[string]*types.Package {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(files[path])
	})
	packages := map[string]*types.Package{}
	for _, path := range paths {
		if packages[path], err = imports.Import(path); err != nil {
			t.Fatal(err)
		}
	}
	return packages
}

// An apiWalk visits the types that a program can name or reach through the exported identifiers of
// a package.
type apiWalk struct {
	pkg     *types.Package
	at      []string // the identifiers that lead to the present type
	seen    map[types.Type]bool
	exposed []string
}

func (w *apiWalk) object(o types.Object) {
	w.at = append(w.at, o.Name())
	w.visit(o.Type())
	w.at = w.at[:len(w.at)-1]
}

func (w *apiWalk) visit(t types.Type) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		if w.declared(t.Obj()) {
			w.visit(t.Rhs())
		}
	case *types.Named:
		if !w.declared(t.Obj()) {
			return
		}
		w.visit(t.Underlying())
		methods := types.NewMethodSet(types.NewPointer(t))
		for i := range methods.Len() {
			if m := methods.At(i).Obj(); m.Exported() {
				w.object(m)
			}
		}
	case *types.Pointer:
		w.visit(t.Elem())
	case *types.Slice:
		w.visit(t.Elem())
	case *types.Array:
		w.visit(t.Elem())
	case *types.Chan:
		w.visit(t.Elem())
	case *types.Map:
		w.visit(t.Key())
		w.visit(t.Elem())
	case *types.Signature:
		w.visit(t.Params())
		w.visit(t.Results())
	case *types.Tuple:
		for i := range t.Len() {
			w.visit(t.At(i).Type())
		}
	case *types.Struct:
		for i := range t.NumFields() {
			if f := t.Field(i); f.Exported() || f.Embedded() {
				w.object(f)
			}
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			if m := t.Method(i); m.Exported() {
				w.object(m)
			}
		}
		for i := range t.NumEmbeddeds() {
			w.visit(t.EmbeddedType(i))
		}
	}
}

// declared reports whether the type is declared in the package that is walked, and notes a type of
// a package of this module that is not public.
func (w *apiWalk) declared(o *types.TypeName) bool {
	p := o.Pkg()
	if p == nil || !strings.HasPrefix(p.Path()+"/", module) {
		return false
	}
	if !slices.Contains(publicPackages, p.Path()) {
		w.exposed = append(w.exposed, fmt.Sprintf("%s exposes %s.%s", strings.Join(w.at, "."), p.Path(), o.Name()))
		return false
	}
	return p == w.pkg
}
