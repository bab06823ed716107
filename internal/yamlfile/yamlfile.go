// Package yamlfile reads the YAML files that users write.
package yamlfile

import (
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
)

// Decode reads a file into v. A key that v does not have is an error, and an empty file is none.
// The library panics at some files that are not YAML, which is an error too.
func Decode(r io.Reader, v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not YAML: %v", p)
		}
	}()
	if err := yaml.NewDecoder(r, yaml.Strict()).Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
