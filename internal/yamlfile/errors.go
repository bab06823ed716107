package yamlfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"softroce/internal/suggest"
)

// A LineError is an invalid value and its line.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// Scalar parses the text of a value, for UnmarshalYAML. An error has the line of the value.
func Scalar[T any](n ast.Node, into *T, parse func(string) (T, error)) error {
	tok := n.GetToken()
	v, err := parse(tok.Value)
	if _, ok := n.(ast.ScalarNode); !ok {
		err = errors.New("want a single value, not a list or a map")
	}
	if err != nil {
		return &LineError{tok.Position.Line, err}
	}
	*into = v
	return nil
}

// Load decodes the file at path, which may have max bytes, into v, a pointer to a struct. An error
// names the file and the line and, for an unknown key, the known one that is most like it.
func Load(path string, max int64, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return err
	}
	if int64(len(text)) > max {
		return fmt.Errorf("%s: larger than %d bytes", path, max)
	}
	if err := Decode(strings.NewReader(string(text)), v); err != nil {
		return locate(path, err, reflect.TypeOf(v))
	}
	return nil
}

// locate reduces the decoder's error to one line: file, line, problem.
func locate(path string, err error, t reflect.Type) error {
	var at *LineError
	if errors.As(err, &at) {
		return fmt.Errorf("%s:%d: %w", path, at.Line, at.Err)
	}
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil || y.GetToken().Position == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	msg := strings.ReplaceAll(y.GetMessage(), "\n", " ")
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		key := unknown.Token.Value
		others := slices.DeleteFunc(keys(t), func(k string) bool { return k == key }) // a key in another place
		msg = fmt.Sprintf("key %q is unknown here%s", key, suggest.Word(key, others))
	}
	return fmt.Errorf("%s:%d: %s", path, y.GetToken().Position.Line, msg)
}

// keys lists the keys of a file of type t, also those of the structs in it.
func keys(t reflect.Type) (names []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names = append(names, name)
			names = append(names, keys(t.Field(i).Type)...)
		}
	}
	return names
}
