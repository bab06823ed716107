// Package yamlfile reads the YAML files that users write.
package yamlfile

import (
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/goccy/go-yaml"
)

// Decode reads a file into v, a pointer to a struct. A key that v does not have is an error, and so
// is a second document; an empty file is none. An error is a *LineError, where a line is known. The
// library panics at some files that are not YAML, which is an error too.
func Decode(r io.Reader, v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not YAML: %v", p)
		}
	}()
	d := yaml.NewDecoder(r, yaml.Strict())
	switch err := d.Decode(v); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return describe(err, reflect.TypeOf(v))
	}
	var more any
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("want one YAML document, without a line --- behind it")
	}
	return nil
}
