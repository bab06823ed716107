package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// A release build sets these with the linker's -X. Other builds take them from the build info,
// which has them if the source is a git checkout or a tagged module.
var (
	tag    string // without its "v"
	commit string
)

// sourceVersion is the version of a build that knows no tag.
const sourceVersion = "0.1.0-dev"

type versionCmd struct{}

func (*versionCmd) Run(e *env) error {
	_, err := fmt.Fprintln(e.out, versionLine())
	return err
}

func versionLine() string {
	info, _ := debug.ReadBuildInfo()
	return fmt.Sprintf("softroce %s (commit %s) %s %s/%s",
		release(), sourceCommit(info), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// release is the version that the daemon, its metrics and the manual report.
func release() string {
	if tag != "" {
		return tag
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return sourceVersion
}

// sourceCommit is the commit of the source, with "+dirty" if files were changed since.
func sourceCommit(info *debug.BuildInfo) string {
	if commit != "" || info == nil {
		return cmp.Or(commit, "unknown")
	}
	revision, modified := "unknown", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		revision += "+dirty"
	}
	return revision
}
