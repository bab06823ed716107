package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/suggest"
)

type faultCmd struct {
	daemonFlags
	Action string   `arg:"" enum:"add,list,remove,fire" help:"add adds a rule, or the lines of a program, and prints its ID; list prints the rules; remove removes those with the IDs; fire raises an asynchronous event."`
	Words  []string `arg:"" optional:"" help:"The rule, in the fault language; the IDs; or for fire the NIC, the event, and the number of the queue pair, CQ or SRQ, if it is about one."`
}

func (f *faultCmd) Run(e *env) error {
	switch f.Action {
	case "add":
		return f.add(e)
	case "remove":
		return f.remove(e)
	case "fire":
		return f.fire(e)
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
	if err == nil && last < first {
		return fmt.Errorf("fault add: no rule in %q", rule)
	}
	for id := first; id <= last && err == nil; id++ {
		_, err = fmt.Fprintln(e.out, id)
	}
	return err
}

func (f *faultCmd) fire(e *env) error {
	if n := len(f.Words); n < 2 || n > 3 {
		return &usageError{errors.New("fault fire needs a NIC, an event, and the number of what it is about, such as: softroce0 QP_FATAL 0x11")}
	}
	names := ib.EventNames()
	name := strings.TrimPrefix(strings.ToUpper(f.Words[1]), "IBV_EVENT_")
	event := slices.Index(names, name)
	if event < 0 {
		return &usageError{fmt.Errorf("%q is not an event%s", f.Words[1], suggest.Word(name, names))}
	}
	var number uint64
	if len(f.Words) == 3 {
		var err error
		if number, err = strconv.ParseUint(f.Words[2], 0, 32); err != nil || number == 0 {
			return &usageError{fmt.Errorf("%q is not the number of an object: want one above 0, decimal or with 0x", f.Words[2])}
		}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.FireEvent(e, f.Words[0], ib.EventType(event), uint32(number))
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
