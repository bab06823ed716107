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

// Map decodes a map into a pointer to a struct, for UnmarshalYAML, and returns its line. The struct
// must not have that method.
func Map(n ast.Node, into any) (line int, err error) {
	line = n.GetToken().Position.Line
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		line = m.Values[0].Key.GetToken().Position.Line
	}
	return line, yaml.NodeToValue(n, into, yaml.Strict())
}

// Entries calls each for the keys and values of a map, for UnmarshalYAML. An error has the line of
// the key.
func Entries(n ast.Node, each func(key, value string) error) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return &LineError{n.GetToken().Position.Line, errors.New("want keys with values, such as KEY: VALUE")}
	}
	for _, v := range m.Values {
		at := v.Key.GetToken()
		err := errors.New("want a single value, not a list or a map")
		if _, ok := v.Value.(ast.ScalarNode); ok {
			err = each(at.Value, v.Value.GetToken().Value)
		}
		if err != nil {
			return &LineError{at.Position.Line, err}
		}
	}
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
		return Locate(path, err)
	}
	return nil
}

// Locate returns an error of Decode in the form of compilers: file, line, problem.
func Locate(path string, err error) error {
	var at *LineError
	if errors.As(err, &at) {
		return fmt.Errorf("%s:%d: %w", path, at.Line, at.Err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// describe reduces an error of the library, which is about a file of type t, to its line and one
// line of text.
func describe(err error, t reflect.Type) error {
	var at *LineError
	if errors.As(err, &at) {
		return at
	}
	var y yaml.Error
	if !errors.As(err, &y) || y.GetToken() == nil || y.GetToken().Position == nil {
		return err
	}
	msg := strings.ReplaceAll(y.GetMessage(), "\n", " ")
	var unknown *yaml.UnknownFieldError
	var node *yaml.UnexpectedNodeTypeError
	var overflow *yaml.OverflowError
	switch {
	case errors.As(err, &unknown):
		key := unknown.Token.Value
		others := slices.DeleteFunc(keys(t), func(k string) bool { return k == key }) // a key in another place
		msg = fmt.Sprintf("key %q is unknown here%s", key, suggest.Word(key, others))
	case errors.As(err, &overflow):
		msg = fmt.Sprintf("%s is too large, or too small", overflow.SrcNum)
	case errors.As(err, &node) && node.Expected == ast.SequenceType:
		msg = "want a list, with a line for each element that begins with a dash"
	case errors.As(err, &node) && node.Expected == ast.MappingType:
		msg = "want keys with values, such as KEY: VALUE"
	}
	return &LineError{y.GetToken().Position.Line, errors.New(msg)}
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
		if name := t.Field(i).Tag.Get("yaml"); name != "" && name != "-" {
			names = append(names, name)
			names = append(names, keys(t.Field(i).Type)...)
		}
	}
	return names
}
