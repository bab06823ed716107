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
	do func(s *stage, w *words) error

	// mayFail says that ! in front of it makes sense: what was asked for is to be refused.
	mayFail bool
}

// table holds every command of our own; docs/reference/scenario-language.md has each of them.
var table = map[string]command{
	"mr":      {(*stage).cmdMR, true},
	"dereg":   {(*stage).cmdDereg, true},
	"vanish":  {(*stage).cmdVanish, false},
	"mw":      {(*stage).cmdMW, true},
	"free":    {(*stage).cmdFree, true},
	"key":     {(*stage).cmdKey, false},
	"xrcd":    {(*stage).cmdXRCD, true},
	"attach":  {(*stage).cmdAttach, true},
	"detach":  {(*stage).cmdDetach, true},
	"fill":    {(*stage).cmdFill, false},
	"cq":      {(*stage).cmdCQ, true},
	"arm":     {(*stage).cmdArm, false},
	"srq":     {(*stage).cmdSRQ, true},
	"resize":  {(*stage).cmdResize, true},
	"limit":   {(*stage).cmdLimit, true},
	"qp":      {(*stage).cmdQP, true},
	"pair":    {(*stage).cmdPair, true},
	"modify":  {(*stage).cmdModify, true},
	"destroy": {(*stage).cmdDestroy, true},
	"post":    {(*stage).cmdPost, true},

	"scribble": {(*stage).cmdScribble, false},

	"inject":    {(*stage).cmdInject, false},
	"frame":     {(*stage).cmdFrame, false},
	"advance":   {(*stage).cmdAdvance, false},
	"port":      {(*stage).cmdPort, false},
	"address":   {(*stage).cmdAddress, false},
	"drop":      {faultCommand("drop"), false},
	"duplicate": {faultCommand("duplicate"), false},
	"reorder":   {faultCommand("reorder"), false},
	"delay":     {faultCommand("delay"), false},
	"corrupt":   {faultCommand("corrupt"), false},
	"mark":      {faultCommand("mark"), false},
	"set":       {faultCommand("set"), false},

	"expect":  {(*stage).cmdExpect, false},
	"program": {(*stage).cmdProgram, false},
	"ignore":  {(*stage).cmdIgnore, false},
}

func commands() map[string]func(*testscript.TestScript, bool, []string) {
	m := map[string]func(*testscript.TestScript, bool, []string){}
	for name, c := range table {
		m[name] = c.run
	}
	return m
}

// run is the script engine's way to a command.
func (c command) run(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(stageKey{}).(*stage)
	s.log = ts.Logf
	err := c.carryOut(s, neg, args)
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

func (c command) carryOut(s *stage, neg bool, args []string) error {
	if err := s.ended(); err != nil {
		return err
	}
	if neg && !c.mayFail {
		return errors.New("! makes no sense here")
	}
	err := c.do(s, parseWords(args))
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
func (s *stage) cmdAdvance(w *words) error {
	t, err := w.next("a time such as 5ms")
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(t)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q must be a time such as 5ms", t)
	}
	s.testbed.Run(s.floor+d, nil)
	s.passed(d)
	return w.end()
}

// cmdProgram starts the verbs program of a live NIC: program COMMAND…, or program tcp:HOST:PORT. A simulation
// has its own.
func (s *stage) cmdProgram(w *words) error {
	command := slices.Concat(w.plain, optionWords(w.options))
	if len(command) == 0 {
		return errors.New("a command is missing")
	}
	if p, ok := s.testbed.(testbed.ProgramStarter); ok {
		return p.StartProgram(command)
	}
	return nil
}

// faultCommand is a command that adds a rule to the NIC's cable.
func faultCommand(action string) func(*stage, *words) error {
	return func(s *stage, w *words) error {
		rule := action
		for _, p := range w.plain {
			rule += " " + p
		}
		if len(w.options) > 0 {
			return fmt.Errorf("%s= : rules are written without =, see docs/reference/fault-language.md", w.options[0].name)
		}
		return s.testbed.Fault(rule)
	}
}
