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

// Options are the options of Run.
type Options struct {
	// NewTestbed creates the testbed of a scenario, which passes the frames on the link of the NIC
	// under test to tap. nil means a simulation.
	NewTestbed func(tap wire.FrameSink) (testbed.Testbed, error)

	// MissingEvents names the asynchronous events that the NIC under test does not generate. A
	// scenario that expects one does not wait for it; if one arrives nevertheless, it counts as
	// unexpected.
	MissingEvents []string

	// Untimed disables the check for packets that arrive too early. The clock of a live NIC's host
	// may be unreliable, for example in a virtual machine that is paused and catches up.
	Untimed bool

	// Context ends a scenario early and fails it. nil means no such context.
	Context context.Context
}

// Run runs the scenario in a file to its end.
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
	if p.result.Err == nil && p.script.commands == 0 {
		p.result.Reason = "the scenario has no command"
		p.result.Err = fmt.Errorf("%w: %s", ErrFailed, p.result.Reason)
	}
	return &p.result
}

// scriptKey is the key of the *script among the values of the script engine.
type scriptKey struct{}

func (p *runner) setup(e *testscript.Env, o Options) error {
	st := newScript()
	st.skip, p.script = p.Skip, st
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
				p.log(fmt.Sprintf("FAIL: %s: at the end: %v\n", p.result.File, err))
				p.failed = true
			}
		}
		b.Close()
	})
	return st.open(b)
}

// A runner implements testscript.T, the test that the script engine reports to.
type runner struct {
	result   Result
	script   *script // nil before setup
	failed   bool
	live     bool
	ipv6     bool
	extraLog strings.Builder // logged before the engine passes its own log
}

// unwind is the panic value that ends a script.
type unwind struct{}

// protect runs f until it returns or panics with unwind.
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

// Parallel implements testscript.T. Run runs one scenario, so it does nothing.
func (p *runner) Parallel() {}

// Verbose implements testscript.T. The log is always kept; the caller of Run decides whether to
// show it.
func (p *runner) Verbose() bool { return true }

// phaseTime matches the duration that the engine appends to comments.
var phaseTime = regexp.MustCompile(`(?m)^(#.*) \(\d+\.\d{3}s\)$`)

// Log implements testscript.T. The engine calls it once with its log, which begins with the
// environment.
func (p *runner) Log(args ...any) {
	s := fmt.Sprint(args...)
	if _, after, ok := strings.Cut(s, "\n\n"); ok && strings.HasPrefix(s, "WORK=") {
		s = after
	}
	s = strings.TrimSuffix(s, "PASS\n")
	p.result.Log += phaseTime.ReplaceAllString(s, "$1")
}
