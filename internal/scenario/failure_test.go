package scenario

import (
	"errors"
	"strings"
	"testing"
)

// ackedSend is the start of the scripts below: four lines with a SEND and its ACK.
const ackedSend = `mr m 4096
qp a
post a send m:8
inject a ACKNOWLEDGE psn=100 aeth.msn=1
`

func TestFailureNamesLineAndObservation(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"another field", ackedSend + "expect packet a SEND_ONLY psn=101", []string{"it.txt:5:", "expected packet a SEND_ONLY psn=101", "psn is 100, want 101", "RC_SEND_ONLY dest_qp="}},
		{"another opcode", ackedSend + "expect packet a WRITE_ONLY psn=100", []string{"it.txt:5:", "it is RC_SEND_ONLY"}},
		{"another payload", ackedSend + "expect packet a SEND_ONLY payload=8*x", []string{"its payload is 8*."}},
		{"no packet", ackedSend + "expect packet a SEND_ONLY\nexpect packet a SEND_ONLY", []string{"it.txt:6:", "nothing arrived", "RC_ACKNOWLEDGE"}},
		{"no packet in time", "qp a\nexpect packet a SEND_ONLY within=5ms", []string{"nothing arrived within 5ms", "no packet so far"}},
		{"a packet too soon", ackedSend + "expect packet a SEND_ONLY after=5ms", []string{"earlier than 5ms"}},
		{"another status", ackedSend + "expect completion a send 1 WR_FLUSH_ERR", []string{"its status is SUCCESS"}},
		{"another work request", ackedSend + "expect completion a send 2 SUCCESS", []string{"it is for work request 1"}},
		{"no completion", ackedSend + "expect completion a recv 1 SUCCESS", []string{"nothing arrived"}},
		{"no silence", ackedSend + "expect silence", []string{"expected silence", "RC_SEND_ONLY"}},
		{"another state", ackedSend + "expect state a ERR", []string{"expected a in state ERR, but it is in RTS"}},
		{"no event", ackedSend + "expect event QP_FATAL", []string{"expected event QP_FATAL", "there was none"}},
		{"a completion", ackedSend + "expect packet a SEND_ONLY\nexpect nothing", []string{"expected nothing", "completion a send 1 SUCCESS"}},
		{"no drop", ackedSend + "expect drop icrc", []string{"expected drop icrc 1, but it is 0"}},
		{"another counter", ackedSend + "expect counter duplicate_request 7", []string{"but it is 0"}},
		{"other memory", ackedSend + "expect memory m x", []string{"expected memory m x", "holds ."}},
		{"left over", ackedSend, []string{"at the end", "not expected", "RC_SEND_ONLY", "completion a send 1 SUCCESS"}},
		{"a drop left over", "qp a\ninject a SEND_ONLY tver=1", []string{"drop tver 1"}},
		{"not refused", "qp a\n! modify a SQD", []string{"it was not refused"}},
		{"refused", "qp a state=RESET\nmodify a RTR", []string{"it.txt:2: refused:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := runScript(t, c.script)
			if !errors.Is(r.Err, ErrFailed) {
				t.Fatalf("%v, log:\n%s", r.Err, r.Log)
			}
			for _, w := range c.want {
				if !strings.Contains(r.Err.Error(), w) {
					t.Errorf("%v\nlacks %q", r.Err, w)
				}
			}
		})
	}
}

func TestLanguageErrorsAreReported(t *testing.T) {
	for script, want := range map[string]string{
		"frobnicate":                         "unknown command",
		"qp a\nqp a":                         `the name "a" is in use`,
		"qp a mtv=5":                         `unknown option "mtv"`,
		"qp a mtu=x":                         "want a number",
		"post a send":                        `no queue pair "a"`,
		"qp a\npost a fly":                   `unknown operation "fly"`,
		"qp a\npost a send n":                `no memory region "n"`,
		"qp a\ninject a SEND_NEVER":          `unknown opcode "SEND_NEVER" of RC`,
		"qp a\ninject a SEND_ONLY reth.va=1": "RC_SEND_ONLY has no reth.va",
		"qp a\ninject a SEND_ONLY qsn=1":     `unknown field "qsn"`,
		"qp a\ninject a ACKNOWLEDGE aeth.syndrome=9x": "unknown syndrome",
		"expect miracle":              `unknown expectation "miracle"`,
		"expect drop dead":            "unknown drop reason",
		"expect counter strike 1":     "unknown counter",
		"expect event HORIZON":        "unknown event",
		"! advance 1ms":               "cannot be preceded by !",
		"advance slowly":              "want a duration",
		"drop everything":             "line 1",
		"ignore me":                   "unknown kind",
		"mr m 8\nfill m 9*x":          "do not fit",
		"mr m 8\nexpect memory m+9 x": "outside of the region",
	} {
		if r := runScript(t, script); r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%q: %v, want %q", script, r.Err, want)
		}
	}
}

// A scenario that does nothing shows nothing.
func TestScenarioWithoutCommandsFails(t *testing.T) {
	if r := runScript(t, "# nothing\n"); r.Err == nil || !strings.Contains(r.Err.Error(), "has no command") {
		t.Error(r.Err)
	}
}

func TestSkippedScenarioReportsReason(t *testing.T) {
	if r := runScript(t, "skip 'not now'\nqp a\nqp a"); !errors.Is(r.Err, ErrSkipped) || !strings.Contains(r.Err.Error(), "not now") {
		t.Error(r.Err)
	}
}

func TestScenarioIsDeterministic(t *testing.T) {
	const file = "testdata/rc-pair-duplicate.txt"
	if a, b := Run(file, Options{}), Run(file, Options{}); a.Log != b.Log {
		t.Errorf("%s\n%s", a.Log, b.Log)
	}
}

func TestFormatDataRoundTrips(t *testing.T) {
	for _, s := range []string{"8*x", "hello", "100*a+b+3*c", "hex:0001ff", "ab+hex:00+9*z", "u64:5"} {
		b, err := parseData(s)
		if err != nil {
			t.Fatal(s, err)
		}
		if c, err := parseData(formatData(b)); err != nil || string(c) != string(b) {
			t.Errorf("%s: formatted as %s", s, formatData(b))
		}
	}
}
