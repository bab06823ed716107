package verbstest

import (
	"context"
	"fmt"
	"testing"
)

// A program takes the place of a test for a fabric of NewFabric: what would fail the test panics.
type program struct {
	testing.TB // nil: the methods below are all that is used
	cleanups   []func()
}

func (p *program) Helper()                        {}
func (p *program) Failed() bool                   { return false }
func (p *program) Cleanup(f func())               { p.cleanups = append(p.cleanups, f) }
func (p *program) Context() context.Context       { return context.Background() }
func (p *program) Fatal(args ...any)              { panic(fmt.Sprint(args...)) }
func (p *program) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (p *program) Errorf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

// cleanup runs the registered functions, the last one first.
func (p *program) cleanup() {
	for len(p.cleanups) > 0 {
		last := len(p.cleanups) - 1
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		f()
	}
}
