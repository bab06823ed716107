package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is that of the source; a build from a tagged module knows better.
const version = "0.1.0-dev"

type versionCmd struct{}

func (*versionCmd) Run(e *env) error {
	_, err := fmt.Fprintf(e.out, "softroce %s %s %s/%s\n", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// release is the version that others are told.
func release() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return version
}
