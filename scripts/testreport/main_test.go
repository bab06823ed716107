package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// reportOf returns what testreport prints for the events of a run, and its exit status.
func reportOf(t *testing.T, events string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	r := &report{out: printable{&out}, output: map[string][]string{}, build: map[string][]string{}}
	r.read(strings.NewReader(events))
	status := r.close(1, false)
	return out.String(), status
}

func TestFailuresAreListedAtTheEnd(t *testing.T) {
	out, status := reportOf(t, `{"Action":"output","Package":"softroce/a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"output","Package":"softroce/a","Test":"TestX/one","Output":"    a_test.go:5: waited 3m0s for exclusive use\n"}
{"Action":"output","Package":"softroce/a","Test":"TestX/one","Output":"    a_test.go:7: wrong: 3\n"}
{"Action":"output","Package":"softroce/a","Test":"TestX/one","Output":"        want 4\n"}
{"Action":"output","Package":"softroce/a","Test":"TestX/one","Output":"    --- FAIL: TestX/one (0.00s)\n"}
{"Action":"fail","Package":"softroce/a","Test":"TestX/one"}
{"Action":"output","Package":"softroce/a","Test":"TestX","Output":"--- FAIL: TestX (0.00s)\n"}
{"Action":"fail","Package":"softroce/a","Test":"TestX"}
{"Action":"pass","Package":"softroce/a","Test":"TestGood"}
{"Action":"output","Package":"softroce/a","Output":"FAIL\n"}
{"Action":"output","Package":"softroce/a","Output":"exit status 1\n"}
{"Action":"fail","Package":"softroce/a"}
{"Action":"build-output","ImportPath":"softroce/b [softroce/b.test]","Output":"# softroce/b\n"}
{"Action":"build-output","ImportPath":"softroce/b [softroce/b.test]","Output":"b/b.go:3:1: syntax error\n"}
{"Action":"build-fail","ImportPath":"softroce/b [softroce/b.test]"}
{"Action":"output","Package":"softroce/b","Output":"FAIL\tsoftroce/b [build failed]\n"}
{"Action":"fail","Package":"softroce/b","FailedBuild":"softroce/b [softroce/b.test]"}
{"Action":"output","Package":"softroce/c","Test":"TestLoop","Output":"    c_test.go:1: started\n"}
{"Action":"output","Package":"softroce/c","Test":"TestLoop","Output":"panic: test timed out after 1s\n"}
{"Action":"fail","Package":"softroce/c"}
{"Action":"output","Package":"softroce/d","Output":"no namespaces\n"}
{"Action":"fail","Package":"softroce/d"}
`)
	want := `
Failed: 4
  softroce/a TestX/one
    a_test.go:7: wrong: 3
  softroce/b
    it does not build
    b/b.go:3:1: syntax error
  softroce/c TestLoop
    panic: test timed out after 1s
  softroce/d
    no namespaces
`
	if _, end, _ := strings.Cut(out, "\nFailed"); "\nFailed"+end != want || status != 1 {
		t.Errorf("status %d:\n%s\nwant at the end:\n%s", status, out, want)
	}
	if !strings.Contains(out, "want 4\n") {
		t.Errorf("the output of the test is missing:\n%s", out)
	}
}

func TestControlCharactersAreNotPrinted(t *testing.T) {
	out, _ := reportOf(t, `{"Action":"output","Package":"softroce/a","Test":"TestX","Output":"    a_test.go:7: \u001b[2J\u001b[1;1Hguest\u0007\tends\r\n"}
{"Action":"fail","Package":"softroce/a","Test":"TestX"}
`)
	if want := "    a_test.go:7: guest\tends\n\nFailed: 1\n  softroce/a TestX\n    a_test.go:7: guest\tends\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// A run that does not contain the test that it was to run has failed: go test passes a package in
// which no test matches -run.
func TestRunWithoutTestsFails(t *testing.T) {
	for _, c := range []struct {
		name, events string
		status       int
	}{
		{"no package", "", 1},
		{"a package without a matching test", `{"Action":"pass","Package":"p"}`, 1},
		{"a test", `{"Action":"pass","Package":"p","Test":"TestIt"}` + "\n" + `{"Action":"pass","Package":"p"}`, 0},
	} {
		r := &report{out: io.Discard, output: map[string][]string{}, build: map[string][]string{}}
		r.read(strings.NewReader(c.events))
		if got := r.close(0, false); got != c.status {
			t.Errorf("%s: status %d, want %d", c.name, got, c.status)
		}
	}
}
