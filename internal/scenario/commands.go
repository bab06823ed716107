package scenario

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"softroce/internal/testbed"
)

// A command executes one line of a scenario.
type command struct {
	do func(s *script, args *arguments) error

	// mayFail means that the command may be preceded by !, which expects the NIC to refuse it.
	mayFail bool
}

// commandTable holds the commands beyond those of the script engine. Each is described in
// docs/reference/scenario-language.md.
var commandTable = map[string]command{
	"mr":      {(*script).cmdMR, true},
	"dereg":   {(*script).cmdDereg, true},
	"vanish":  {(*script).cmdVanish, false},
	"mw":      {(*script).cmdMW, true},
	"free":    {(*script).cmdFree, true},
	"key":     {(*script).cmdKey, false},
	"xrcd":    {(*script).cmdXRCD, true},
	"attach":  {(*script).cmdAttach, true},
	"detach":  {(*script).cmdDetach, true},
	"fill":    {(*script).cmdFill, false},
	"cq":      {(*script).cmdCQ, true},
	"arm":     {(*script).cmdArm, false},
	"srq":     {(*script).cmdSRQ, true},
	"resize":  {(*script).cmdResize, true},
	"limit":   {(*script).cmdLimit, true},
	"qp":      {(*script).cmdQP, true},
	"pair":    {(*script).cmdPair, true},
	"modify":  {(*script).cmdModify, true},
	"destroy": {(*script).cmdDestroy, true},
	"post":    {(*script).cmdPost, true},

	"scribble": {(*script).cmdScribble, false},

	"inject":    {(*script).cmdInject, false},
	"frame":     {(*script).cmdFrame, false},
	"advance":   {(*script).cmdAdvance, false},
	"port":      {(*script).cmdPort, false},
	"address":   {(*script).cmdAddress, false},
	"drop":      {faultCommand("drop"), false},
	"duplicate": {faultCommand("duplicate"), false},
	"reorder":   {faultCommand("reorder"), false},
	"delay":     {faultCommand("delay"), false},
	"corrupt":   {faultCommand("corrupt"), false},
	"mark":      {faultCommand("mark"), false},
	"set":       {faultCommand("set"), false},

	"expect":  {(*script).cmdExpect, false},
	"program": {(*script).cmdProgram, false},
	"ignore":  {(*script).cmdIgnore, false},
}

func commands() map[string]func(*testscript.TestScript, bool, []string) {
	m := map[string]func(*testscript.TestScript, bool, []string){}
	for name, c := range commandTable {
		m[name] = c.run
	}
	return m
}

// run adapts a command to the script engine.
func (c command) run(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	s.log = ts.Logf
	s.commands++
	err := c.execute(s, neg, args)
	for _, beyond := range []error{testbed.ErrOneNIC, testbed.ErrNoFaults, testbed.ErrNoXRC, testbed.ErrNoAtomicWrite, testbed.ErrNoFlush, testbed.ErrNoFrames, testbed.ErrNoVLAN, testbed.ErrNoRoCEv1, testbed.ErrNoRings} {
		if errors.Is(err, beyond) {
			s.skip(err)
		}
	}
	if err != nil {
		s.failed = true
		ts.Fatalf("%v", err)
	}
}

// A refusedError is an error of the NIC. Only such errors satisfy !.
type refusedError struct{ err error }

func (r *refusedError) Error() string { return "refused: " + r.err.Error() }
func (r *refusedError) Unwrap() error { return r.err }

// refused marks an error as one of the NIC.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

func (c command) execute(s *script, neg bool, args []string) error {
	if err := s.contextErr(); err != nil {
		return err
	}
	if neg && !c.mayFail {
		return errors.New("this command cannot be preceded by !, because it cannot fail")
	}
	err := c.do(s, parseArguments(args))
	if !neg {
		return err
	}
	var r *refusedError
	if errors.As(err, &r) {
		s.log("    %v", err)
		return nil
	}
	if err == nil {
		err = errors.New("it was not refused")
	}
	return err
}

// cmdAdvance waits: advance TIME.
func (s *script) cmdAdvance(args *arguments) error {
	t, err := args.next("a duration such as 5ms")
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(t)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q: want a duration such as 5ms", t)
	}
	s.testbed.Run(s.earliest+d, nil)
	s.elapse(d)
	return args.end()
}

// cmdProgram starts the verbs program of a live NIC: program COMMAND…, or program tcp:HOST:PORT. A
// simulation ignores it.
func (s *script) cmdProgram(args *arguments) error {
	command := slices.Concat(args.plain, formatOptions(args.options))
	if len(command) == 0 {
		return errors.New("a command is missing")
	}
	if p, ok := s.testbed.(testbed.ProgramStarter); ok {
		return p.StartProgram(command)
	}
	return nil
}

// faultCommand returns a command that adds a fault rule to the link of the NIC under test.
func faultCommand(action string) func(*script, *arguments) error {
	return func(s *script, args *arguments) error {
		rule := action
		for _, p := range args.plain {
			rule += " " + p
		}
		if len(args.options) > 0 {
			return fmt.Errorf("%s=: fault rules have no options, see docs/reference/fault-language.md", args.options[0].name)
		}
		return s.testbed.Fault(rule)
	}
}
