package scenario

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"softroce/internal/testbed"
)

// A command carries out one line of a scenario.
type command struct {
	do func(s *script, args *arguments) error

	// mayFail says that ! in front of it makes sense: what was asked for is to be refused.
	mayFail bool
}

// table holds every command of our own; docs/reference/scenario-language.md has each of them.
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

// run is the script engine's way to a command.
func (c command) run(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	s.log = ts.Logf
	err := c.execute(s, neg, args)
	for _, beyond := range []error{testbed.ErrOneNIC, testbed.ErrNoFaults, testbed.ErrNoXRC, testbed.ErrNoAtomicWrite, testbed.ErrNoFlush, testbed.ErrNoFrames, testbed.ErrNoVLAN, testbed.ErrNoRings} {
		if errors.Is(err, beyond) {
			s.skip(err)
		}
	}
	if err != nil {
		s.failed = true
		ts.Fatalf("%v", err)
	}
}

// A refusedError is what the NIC said; ! excuses that, and nothing else.
type refusedError struct{ err error }

func (r *refusedError) Error() string { return "refused: " + r.err.Error() }
func (r *refusedError) Unwrap() error { return r.err }

// refused marks what the NIC said.
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
		return errors.New("! makes no sense here")
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

// cmdAdvance lets time pass.
func (s *script) cmdAdvance(args *arguments) error {
	t, err := args.next("a time such as 5ms")
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(t)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q must be a time such as 5ms", t)
	}
	s.testbed.Run(s.earliest+d, nil)
	s.elapse(d)
	return args.end()
}

// cmdProgram starts the verbs program of a live NIC: program COMMAND…, or program tcp:HOST:PORT. A simulation
// has its own.
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

// faultCommand is a command that adds a rule to the NIC's cable.
func faultCommand(action string) func(*script, *arguments) error {
	return func(s *script, args *arguments) error {
		rule := action
		for _, p := range args.plain {
			rule += " " + p
		}
		if len(args.options) > 0 {
			return fmt.Errorf("%s= : rules are written without =, see docs/reference/fault-language.md", args.options[0].name)
		}
		return s.testbed.Fault(rule)
	}
}
