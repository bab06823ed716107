package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testNames are the names of a machine with two NICs and an interface.
type testNames struct{}

func (testNames) nics(socket string) []candidate {
	return []candidate{{"rdma0" + socket, "eth0"}, {"rdma1" + socket, ""}}
}

func (testNames) links(prefix string) []candidate {
	return []candidate{{prefix + "fabric", ""}, {prefix + "packet:eth0", ""}}
}

func TestCandidatesFitTheWordsBefore(t *testing.T) {
	k := model(t)
	for line, want := range map[string]string{
		"sho":                      "show",
		"c":                        "capture check completion congestion counters",
		"--so":                     "--socket",
		"--hel":                    "--help",
		"show c":                   "ctx cq cm_id counters",
		"show qp ":                 "",
		"show qp --j":              "--json",
		"daemon --met":             "--metrics",
		"daemon --nic ":            "",
		"daemon --nic a=":          "a=fabric a=packet:eth0",
		"daemon --nic=a=p":         "--nic=a=packet:eth0",
		"daemon --config ":         ":files",
		"--socket x run --":        "--nic --fault --capture --capture-blocking --device --quiet --socket --help --version",
		"perf ":                    "send write read atomic",
		"perf write --type ":       "rc uc ud",
		"perf write --type=u":      "--type=uc --type=ud",
		"perf --qps 4 w":           "write",
		"perf --json --mtu 1":      "1024",
		"perf write --device ":     "rdma0 rdma1",
		"perf --socket /s --peer ": "rdma0/s rdma1/s",
		"--socket=/s pingpong -d ": "rdma0/s rdma1/s",
		"run --device rdma1,":      "rdma1,rdma0 rdma1,rdma1",
		"run ":                     ":commands",
		"run -- ":                  ":commands",
		"run -q ib_write":          ":commands",
		"run -- ib_write_bw ":      ":files",
		"run ib_write_bw --d":      ":files",
		"decode ":                  ":files",
		"decode a.pcapng ":         "",
		"scenario a.txt ":          ":files",
		"replay --onto packet:":    "packet:eth0",
		"replay --side ":           "both requester responder",
		"replay --program ":        ":commands",
		"pkeys rdma1":              "rdma1",
		"link rdma1 ":              "down flap up",
		"completion ":              "bash zsh fish",
		"help perf":                "perf",
		"dance ":                   "",
		"manua":                    "",
		"--nosuch show dev":        "devices",
	} {
		words := strings.Split(line, " ")
		var got []string
		for _, c := range candidates(k.Model, words, testNames{}) {
			got = append(got, c.value)
		}
		wanted := strings.Fields(want)
		slices.Sort(got)
		slices.Sort(wanted)
		if line == "--socket x run --" { // whatever flags there are
			got = slices.DeleteFunc(got, func(f string) bool { return !slices.Contains(wanted, f) })
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%q: %q, want %q", line, got, wanted)
		}
	}
}

// The shells load the scripts and ask softroce. Each test prints what the shell would insert.
func TestCompletionInShells(t *testing.T) {
	dir := t.TempDir()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, err := exec.Command("softroce", "completion", shell).Output(); err != nil {
			t.Fatal(err)
		} else if err := os.WriteFile(filepath.Join(dir, "softroce."+shell), out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// bash splits words at "=" and ":", as it does with the default COMP_WORDBREAKS.
	bash := `. ` + dir + `/softroce.bash
COMP_LINE=$1 COMP_POINT=${#1}
read -ra COMP_WORDS <<<"${1//=/ = }"
[[ $1 != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_softroce; printf '%s\n' "${COMPREPLY[@]}"`
	zsh := `compdef() { : }; _files() { echo :files }; _command_names() { echo :commands }
_describe() { print -l -- "${(@P)4}" }
. ` + dir + `/softroce.zsh
words=("${(@s: :)1}"); CURRENT=$#words; _softroce; true`
	fish := `source ` + dir + `/softroce.fish; complete --do-complete $argv[1]`
	for _, c := range []struct{ line, bash, zsh, fish string }{
		{"softroce sho", "show", "show:Show the NICs and objects of a running daemon.", "show\tShow the NICs and objects of a running daemon."},
		{"softroce show dev", "devices", "devices:NICs with their GIDs and P_Keys", "devices\tNICs with their GIDs and P_Keys"},
		{"softroce perf --type=u", "uc\nud", "--type=uc:\n--type=ud:", "--type=uc\n--type=ud"},
		{"softroce daemon --nic a=fa", "fabric", "a=fabric:other NICs of the daemon", "a=fabric\tother NICs of the daemon"},
		{"softroce show qp ", "", "", ""},
	} {
		for _, s := range []struct {
			argv []string
			want string
		}{
			{[]string{"bash", "--norc", "-c", bash, "bash", c.line}, c.bash},
			{[]string{"zsh", "-f", "-c", zsh, "zsh", c.line}, c.zsh},
			{[]string{"fish", "--no-config", "-c", fish, c.line}, c.fish},
		} {
			if _, err := exec.LookPath(s.argv[0]); err != nil {
				t.Skipf("%v: scripts/setup test installs it", err)
			}
			out, err := exec.Command(s.argv[0], s.argv[1:]...).CombinedOutput()
			if got := strings.TrimRight(string(out), "\n"); err != nil || got != s.want {
				t.Errorf("%s, %q: %q (%v), want %q", s.argv[0], c.line, got, err, s.want)
			}
		}
	}
}
