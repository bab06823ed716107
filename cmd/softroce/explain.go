package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/daemon"
	"softroce/internal/explain"
	programs "softroce/internal/run"
)

type explainCmd struct {
	daemonFlags
	QPN  string `arg:"" optional:"" name:"qpn" help:"The number of a queue pair, or NIC/QPN; without it, those that have failed or make no progress are explained."`
	NIC  string `name:"nic" placeholder:"NIC" complete:"<nics>" help:"Only queue pairs of this NIC."`
	PID  int    `name:"pid" placeholder:"PID" help:"Only queue pairs of this process, which may have ended."`
	All  bool   `short:"a" help:"Also explain queue pairs that work."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (x *explainCmd) Run(e *env) error {
	match, err := x.selection()
	if err != nil {
		return &usageError{err}
	}
	c, err := e.find()
	if err != nil {
		return err
	}
	defer c.Close()
	snap, err := snapshot(e, c.Client)
	if err != nil {
		return err
	}
	if err := x.checkNIC(snap); err != nil {
		return err
	}
	list := explain.All(snap)
	numbers := queuePairs(list)
	list = slices.DeleteFunc(list, func(q explain.Explanation) bool { return !match(&q) })
	if x.QPN != "" && len(list) == 0 {
		return fmt.Errorf("no queue pair %s exists or is remembered (have: %s)", x.QPN, numbers)
	}
	if x.JSON {
		if list == nil {
			list = []explain.Explanation{}
		}
		return e.json(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(e.err, "softroce: no queue pair has failed or waits for its peer; --all explains all of them")
	}
	return explain.WriteText(e.out, list)
}

// selection returns which queue pairs are wanted.
func (x *explainCmd) selection() (func(*explain.Explanation) bool, error) {
	var number uint32
	if x.QPN != "" {
		name, text, both := strings.Cut(x.QPN, "/")
		if !both {
			name, text = x.NIC, x.QPN
		}
		n, err := strconv.ParseUint(text, 0, 24)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("queue pair %q: want a number such as 17 or 0x11, from 1 to 0xffffff", x.QPN)
		}
		if both && x.NIC != "" && x.NIC != name {
			return nil, fmt.Errorf("--nic %s contradicts %s", x.NIC, x.QPN)
		}
		number, x.NIC = uint32(n), name
	}
	return func(q *explain.Explanation) bool {
		if x.NIC != "" && q.NIC != x.NIC || x.PID != 0 && q.QP.PID != x.PID {
			return false
		}
		if number != 0 {
			return q.QP.QPN == number
		}
		return x.All || q.Severity <= explain.Stalled
	}, nil
}

func (x *explainCmd) checkNIC(s *daemon.Snapshot) error {
	var names []string
	for i := range s.Devices {
		names = append(names, s.Devices[i].Name)
	}
	if x.NIC != "" && !slices.Contains(names, x.NIC) {
		return fmt.Errorf("no NIC %q (have: %s)", x.NIC, strings.Join(names, ", "))
	}
	return nil
}

// maxNamed is how many queue pairs an error message names.
const maxNamed = 10

func queuePairs(l []explain.Explanation) string {
	if len(l) == 0 {
		return "none"
	}
	var names []string
	for i := range l[:min(len(l), maxNamed)] {
		names = append(names, fmt.Sprintf("%s/%d", l[i].NIC, l[i].QP.QPN))
	}
	if len(l) > maxNamed {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// explainProgram explains the queue pair of a program that has failed which is the most likely
// reason: one in error, or else one that made no progress. Of several, it is the first that failed.
func explainProgram(ctx context.Context, p programs.Ended) string {
	text, err := p.Daemon.Snapshot(ctx)
	if err != nil {
		return "" // the daemon has ended, which is reported elsewhere
	}
	var snap daemon.Snapshot
	if json.Unmarshal(text, &snap) != nil {
		return ""
	}
	first := ^uint32(0) // clients with greater numbers came after this process
	for _, c := range snap.Clients {
		if c.PID == os.Getpid() {
			first = min(first, c.Client)
		}
	}
	var found *explain.Explanation
	for _, x := range explain.All(&snap) {
		q := &x.QP
		ours := p.Private || q.PID == p.PID || q.Group == p.PID || q.UID == uint32(os.Geteuid()) && q.Group == unix.Getpgrp()
		if !ours || q.Client <= first || x.Severity > explain.Stalled {
			continue
		}
		if found == nil || x.Severity < found.Severity || x.Severity == found.Severity && at(&x) < at(found) {
			found = &x
		}
	}
	if found == nil {
		return ""
	}
	return found.Line() + fmt.Sprintf(" (softroce explain, process %d %s)", found.QP.PID, found.QP.Comm)
}

func at(x *explain.Explanation) int64 {
	if x.QP.Failure == nil {
		return 0
	}
	return x.QP.Failure.At
}
