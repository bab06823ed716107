package scenario

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"softroce/internal/testbed"
	"softroce/wire"
)

// Options say how scenarios are played.
type Options struct {
	// Bench makes what a scenario is played on; tap is to be given what is on the cable of the
	// NIC under test. nil stands for a simulation.
	NewTestbed func(tap wire.FrameSink) (testbed.Testbed, error)

	// Lacks names the asynchronous events that the NIC under test does not give. Where one is expected nothing is
	// waited for; one that comes after all was not expected.
	MissingEvents []string

	// Untimed says that the clock of the live NIC's host cannot be relied on, as that of a virtual machine which
	// stands still now and then and catches up: what comes too soon is not held against it.
	Untimed bool

	// Context ends a scenario early, which then has failed; nil stands for one that does not end.
	Context context.Context
}

// Play plays the scenario in a file. It blocks until the end of the scenario.
func Run(file string, o Options) *Result {
	if o.NewTestbed == nil {
		o.NewTestbed = testbed.NewSimulated
	}
	p := &runner{result: Result{File: file}}
	p.protect(func() {
		testscript.RunT(p, testscript.Params{
			Files: []string{file},
			Setup: func(e *testscript.Env) error { return p.setup(e, o) },
			Cmds:  commands(),
			Condition: func(c string) (bool, error) {
				switch c {
				case "live":
					return p.live, nil
				case "ipv6":
					return p.ipv6, nil
				}
				return false, fmt.Errorf("unknown condition %q", c)
			},
		})
	})
	return &p.result
}

// stageKey is where a script's stage is kept.
type scriptKey struct{}

func (p *runner) setup(e *testscript.Env, o Options) error {
	st := newScript()
	st.skip = p.Skip
	b, err := o.NewTestbed(st)
	if err != nil {
		return err
	}
	_, p.live = b.(testbed.ProgramStarter)
	p.ipv6 = b.Peer().Is6()
	e.Values[scriptKey{}] = st
	st.missingEvents, st.untimed = o.MissingEvents, o.Untimed
	if o.Context != nil {
		st.contextErr = o.Context.Err
	}
	e.Defer(func() {
		p.result.Packets, p.result.Time = len(st.frames), b.Now()
		if p.result.Err == nil && !st.failed {
			if err := st.checkLeftovers(); err != nil {
				p.log(fmt.Sprintf("FAIL: %s: at its end: %v\n", p.result.File, err))
				p.failed = true
			}
		}
		b.Close()
	})
	return st.open(b)
}

// A player is what the script engine takes for a test.
type runner struct {
	result   Result
	failed   bool
	live     bool
	ipv6     bool
	extraLog strings.Builder // logged before the engine hands over its own log
}

// stopped is what unwinds a script.
type unwind struct{}

// protect runs f to its end, or until it is unwound.
func (p *runner) protect(f func()) {
	defer func() {
		if r := recover(); r != nil && r != any(unwind{}) {
			panic(r)
		}
	}()
	f()
}

func (p *runner) log(s string) { p.extraLog.WriteString(s) }

// Run implements testscript.T.
func (p *runner) Run(_ string, f func(testscript.T)) {
	p.protect(func() { f(p) })
	if p.failed {
		p.result.Log += p.extraLog.String()
		p.result.fail()
	}
}

// Skip implements testscript.T.
func (p *runner) Skip(args ...any) {
	p.result.skip(strings.TrimSpace(fmt.Sprint(args...)))
	panic(unwind{})
}

// Fatal implements testscript.T.
func (p *runner) Fatal(args ...any) {
	p.log("FAIL: " + p.result.File + ": " + fmt.Sprint(args...) + "\n")
	p.FailNow()
}

// FailNow implements testscript.T.
func (p *runner) FailNow() {
	p.failed = true
	panic(unwind{})
}

// Parallel implements testscript.T: scenarios are played one after the other.
func (p *runner) Parallel() {}

// Verbose implements testscript.T. The log is always kept; whoever has the Result decides
// whether it is shown.
func (p *runner) Verbose() bool { return true }

// phaseTime is what the engine adds to comments: how long the phase took.
var phaseTime = regexp.MustCompile(`(?m)^(#.*) \(\d+\.\d{3}s\)$`)

// Log implements testscript.T. It is called once, with the engine's log, which begins with the environment.
func (p *runner) Log(args ...any) {
	s := fmt.Sprint(args...)
	if _, after, ok := strings.Cut(s, "\n\n"); ok && strings.HasPrefix(s, "WORK=") {
		s = after
	}
	s = strings.TrimSuffix(s, "PASS\n")
	p.result.Log += phaseTime.ReplaceAllString(s, "$1")
}
