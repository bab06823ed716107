package main

import (
	"bytes"
	"regexp"
	"runtime/debug"
	"testing"
)

func TestVersionPrintsTagCommitAndGoVersion(t *testing.T) {
	t.Cleanup(func() { tag, commit = "", "" })
	tag, commit = "1.2.3", "0123456789ab"
	var out bytes.Buffer
	if err := (&versionCmd{}).Run(&env{out: &out}); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^softroce 1\.2\.3 \(commit 0123456789ab\) go\S+ linux/\w+\n$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("%q, want a match of %v", &out, want)
	}
}

func TestCommitComesFromBuildInfo(t *testing.T) {
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{[]debug.BuildSetting{setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "false")}, "0123456789ab"},
		{[]debug.BuildSetting{setting("vcs.revision", "0123456789abcdef"), setting("vcs.modified", "true")}, "0123456789ab+dirty"},
	} {
		if got := sourceCommit(&debug.BuildInfo{Settings: c.settings}); got != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got, c.want)
		}
	}
}
