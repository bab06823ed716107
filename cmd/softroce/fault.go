package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

type faultCmd struct {
	daemonFlags
	Action string   `arg:"" enum:"add,list,remove" help:"add adds a rule, or the lines of a program, and prints its ID; list prints the rules; remove removes those with the IDs."`
	Words  []string `arg:"" optional:"" help:"The rule, in the fault language, or the IDs."`
}

func (f *faultCmd) Run(e *env) error {
	switch f.Action {
	case "add":
		return f.add(e)
	case "remove":
		return f.remove(e)
	}
	if len(f.Words) > 0 {
		return &usageError{errors.New("fault list takes no rule")}
	}
	return (&showCmd{daemonFlags: f.daemonFlags, Kind: "faults"}).Run(e)
}

func (f *faultCmd) add(e *env) error {
	rule := strings.Join(f.Words, " ")
	if strings.TrimSpace(rule) == "" {
		return &usageError{errors.New("fault add needs a rule, such as: drop receive kind ack nth 3")}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	first, last, err := c.AddFaults(e, rule)
	for id := first; id <= last && err == nil; id++ {
		_, err = fmt.Fprintln(e.out, id)
	}
	return err
}

func (f *faultCmd) remove(e *env) error {
	if len(f.Words) == 0 {
		return &usageError{errors.New("fault remove needs the ID of a rule: softroce fault list prints them")}
	}
	var ids []int
	for _, w := range f.Words {
		id, err := strconv.ParseUint(w, 10, 31)
		if err != nil || id == 0 {
			return &usageError{fmt.Errorf("%q is not the ID of a rule: want a number from 1 to %d", w, math.MaxInt32)}
		}
		ids = append(ids, int(id))
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	var failed error
	for _, id := range ids {
		failed = errors.Join(failed, c.RemoveFault(e, id))
	}
	return failed
}
